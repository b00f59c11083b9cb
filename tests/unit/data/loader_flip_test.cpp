// Which of a sample's tensors loader.flip mirrors.
#include <doctest/doctest.h>
#include <torch/types.h>

#include <ditto/error.h>

#include "core/data/blend.h"
#include "core/data/loader.h"

using ditto::Loader;
using ditto::LoaderOptions;

namespace {

// Pictures whose first column alone is 1, and others of the same that say, or do not, that they turn with them.
struct Turning final : ditto::Source {
  ditto::TensorSpecs specs;
  int64_t size() const override { return 8; }
  ditto::TensorSpecs makes() const override { return specs; }
  std::string fingerprint() const override { return "turning"; }
  static std::vector<int64_t> own(const ditto::TensorSpec& spec) {
    auto shape = spec.shape;
    for (auto& side : shape)
      if (side < 0) side = 6;
    return shape;
  }
  ditto::Sample read(int64_t) const override {
    ditto::Sample sample;
    for (const auto& spec : specs)
      sample.tensors[spec.name] = torch::zeros(own(spec), spec.dtype).index_fill(-1, torch::tensor({0}), 1);
    return sample;
  }
  ditto::SampleInfo info(int64_t) const override {
    ditto::SampleInfo shapes;
    for (const auto& spec : specs) shapes[spec.name] = own(spec);
    return shapes;
  }
};

LoaderOptions in_this_thread() {
  LoaderOptions options;
  options.threads = 0;
  return options;
}

std::string refusal_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const ditto::Error& error) {
    CHECK(error.kind() == ditto::ErrorKind::config);
    return error.what();
  }
  return "nothing";
}

bool is_mirrored(const torch::Tensor& x) { return x.select(-1, x.size(-1) - 1).gt(0).any().item<bool>(); }

std::shared_ptr<Turning> turning(const std::vector<int64_t>& image, const std::vector<int64_t>& other,
                                 at::ScalarType dtype, bool says) {
  auto source = std::make_shared<Turning>();
  source->specs = {{"image", at::kFloat, image, ""}, {"outline", dtype, other, ""}};
  source->specs[1].turns_with_image = says;
  return source;
}

}  // namespace

TEST_CASE("a flip turns all of a sample's pictures alike, or is refused where one does not say whether it turns") {
  using Shape = std::vector<int64_t>;
  constexpr auto kOwn = ditto::kOwnSide;
  const std::vector<std::pair<Shape, Shape>> shapes{{{3, 8, 8}, {1, 8, 8}},   {{3, 8, 8}, {8, 8}},
                                                    {{1, 8, 6}, {2, 4, 3}},   {{3, 4, 8, 6}, {1, 4, 8, 6}},
                                                    {{3, 8, 6}, {1, 16, 12}}, {{3, kOwn, kOwn}, {1, kOwn, kOwn}},
                                                    {{3, 4, 6, 6}, {1, 6, 6}}};
  auto flips = in_this_thread();
  flips.flip = true;
  int variants = 0;
  for (const auto& [image, other] : shapes)
    for (const auto dtype : {at::kFloat, at::kByte, at::kLong}) {
      CAPTURE(c10::str(image, other, dtype));
      const auto batch = Loader(turning(image, other, dtype, true), flips, 3, {}).next({0, 8});
      int64_t mirrored = 0;
      for (int64_t i = 0; i < 8; ++i) {
        CHECK(is_mirrored(batch.at("image")[i]) == is_mirrored(batch.at("outline")[i]));
        mirrored += is_mirrored(batch.at("image")[i]);
      }
      CHECK(mirrored > 0);
      CHECK(mirrored < 8);
      const auto refused = refusal_of([&] { Loader(turning(image, other, dtype, false), flips, 3, {}); });
      CHECK(refused.find("loader.flip: mirrors \"image\", and \"outline\"") == 0);
      Loader(turning(image, other, dtype, false), in_this_thread(), 3, {}).next({0, 8});
      ++variants;
    }
  CHECK(variants >= 20);
  // What is no picture of the same is none that has to say it.
  for (const Shape& other : {Shape{-1, 8}, Shape{2}, Shape{}, Shape{77, 16}})
    Loader(turning({3, 8, 8}, other, at::kFloat, false), flips, 3, {});
}

TEST_CASE("sources are not blended whose tensors of one name turn otherwise") {
  const auto part = [](bool says) {
    return ditto::Blend::Part{says ? "data" : "data.parts.other", turning({3, 8, 8}, {1, 8, 8}, at::kFloat, says), 1.0};
  };
  CHECK(refusal_of([&] { ditto::Blend({part(true), part(true)}); }) == "nothing");
  CHECK(refusal_of([&] {
          ditto::Blend({part(true), part(false)});
        }).find("\"outline\" that does not turn with \"image\" alike") != std::string::npos);
}
