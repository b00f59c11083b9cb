// Claim (data): Pictures brought to a size: what LibTorch's antialiased filter makes of them, but for rounding.
#include <ATen/Functions.h>
#include <doctest/doctest.h>
#include <torch/types.h>

#include <ditto/math/pictures.h>

TEST_CASE("pictures are cut in the middle and resized as LibTorch's antialiased filter does") {
  const auto drawn = torch::randint(0, 256, {3, 61, 97}, torch::kByte).permute({1, 2, 0}).contiguous();
  const auto image = ditto::image_of_pixels({drawn.const_data_ptr<std::uint8_t>(), 3 * 61 * 97}, 61, 97, 3);
  CHECK(torch::equal(image, drawn.permute({2, 0, 1}).to(torch::kFloat) / 127.5 - 1));
  struct Case {
    int64_t height, width, top, left, part_h, part_w;  // of the target, and of the part that is taken
  };
  for (const auto& [height, width, top, left, part_h, part_w] :
       {Case{32, 32, 0, 18, 61, 61}, Case{61, 61, 0, 18, 61, 61}, Case{128, 128, 0, 18, 61, 61},
        Case{7, 5, 0, 26, 61, 44}, Case{3, 96, 29, 0, 3, 97}, Case{1, 1, 0, 18, 61, 61}}) {
    CAPTURE(height);
    CAPTURE(width);
    const auto made = ditto::crop_and_resize(image, height, width);
    const auto part = image.narrow(1, top, part_h).narrow(2, left, part_w).unsqueeze(0).contiguous();
    const auto expected = at::_upsample_bilinear2d_aa(part, {height, width}, false).squeeze(0);
    REQUIRE(made.sizes() == expected.sizes());
    CHECK((made - expected).abs().max().item<double>() < 2e-5);  // its weights are computed in fp32
  }
  CHECK(ditto::crop_and_resize(image, 61, 97).is_same(image));
}
