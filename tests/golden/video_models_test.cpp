// Transformers of video (st_dit, latte, nemo_dit, moviegen): what they refuse, and parts that their references do not
// show.
#include <doctest/doctest.h>
#include <torch/types.h>

#include <ditto/ditto.h>
#include <ditto/nn/video.h>
#include <ditto/testing/checks.h>

#include <support/open_plugin.h>

using ditto::Model;
using ditto::OptionValue;
using ditto::testing::model_needs;
using torch::Tensor;

namespace {

OptionValue number(int64_t value) { return value; }
OptionValue word(const char* value) { return std::string(value); }

const auto kPicture = model_needs({3, 8, 8}, 3, 10), kVideo = model_needs({3, 4, 8, 8}, 3, 0, 12),
           kSilent = model_needs({3, 4, 8, 8}, 3);

std::string refusal(const std::function<void()>& run) {
  try {
    run();
  } catch (const ditto::Error& error) {
    CHECK((error.kind() == ditto::ErrorKind::config));
    return error.what();
  }
  return "it was not refused";
}

void refused(const char* model, const std::map<std::string, OptionValue>& options, const ditto::ModelNeeds& needs,
             const char* part) {
  const auto said = refusal([&] { ditto::test::make_plugin<Model>("models", model, options, needs); });
  CHECK_MESSAGE(said.find(part) != std::string::npos, said);
}

}  // namespace

TEST_CASE("video models: what does not go together is refused, with a remedy") {
  refused("st_dit", {{"null_tokens", number(4)}, {"null_text", word("zero")}}, kVideo, "null_text is \"zero\"");
  refused("st_dit", {{"base_side", number(64)}, {"rotary", word("all")}}, kVideo, "rotary = \"all\" has not");
  refused("nemo_dit", {}, kPicture, "takes video [C, F, H, W], the data has 3 dims");
  refused("nemo_dit", {{"width", number(36)}}, kVideo, "is not a multiple of 16");
  refused("nemo_dit", {{"max_frames", number(3)}}, kVideo, "positions of 3 frames of side 80, the data has larger");
  refused("nemo_dit", {{"patch", number(3)}}, kVideo, "3 does not divide frames of 8 x 8");
  refused("moviegen", {}, kSilent, "takes text, the data has none");
  refused("moviegen", {{"max_side", number(4)}}, kVideo, "raise max_frames or max_side");
  refused("moviegen", {{"kv_heads", number(4)}}, kVideo, "does not divide model.heads");
}

TEST_CASE("st_dit, latte: a format is that of STDiT3's or Latte's function, and of no other") {
  using Options = std::map<std::string, OptionValue>;
  const auto check = [](const char* id, const Options& theirs, const Options& others, const char* format,
                        const char* name) {
    const auto made = [&](const Options& options) {
      return ditto::test::make_plugin<Model>("models", id, options, kVideo);
    };
    CHECK(made(theirs)->foreign_formats() == std::vector<std::string>{format});
    for (const auto& [option, value] : others) {
      CAPTURE(option);
      auto other = theirs;
      other[option] = value;
      const auto model = made(other);
      CHECK(model->foreign_formats().empty());
      const auto said = refusal([&] { (void)model->foreign(format); });
      CHECK_MESSAGE(said.find(name) != std::string::npos, said);
    }
  };
  const Options size{{"depth", number(2)}, {"width", number(48)}, {"heads", number(4)}, {"adaln", word("single")}};
  Options latte{{"null_text", word("zero")}};
  latte.insert(size.begin(), size.end());
  check("latte", latte,
        {{"null_text", word("learned")}, {"mlp_ratio", number(2)}, {"adaln", word("zero")}, {"base_side", number(4)}},
        "diffusers", "LatteTransformer3DModel");
  Options stdit3{{"arrangement", word("alternating")},
                 {"rotary", word("temporal")},
                 {"fps", OptionValue(24.0)},
                 {"null_tokens", number(4)},
                 {"base_side", number(4)}};
  stdit3.insert(size.begin(), size.end());
  check("st_dit", stdit3,
        {{"kv_heads", number(2)},
         {"arrangement", word("joint")},
         {"fps", OptionValue(0.0)},
         {"null_tokens", number(0)},
         {"base_side", number(0)},
         {"cross", word("spatial")},
         {"adaln", word("zero")}},
        "open-sora", "STDiT3");
}

TEST_CASE("learned positions refuse a video that is larger than their tables") {
  ditto::FactorisedPositions positions({2, 3, 4}, 8);
  ditto::Context ctx(std::make_shared<ditto::OpTable>(), ditto::Random(0));
  for (const ditto::Grid& grid : {ditto::Grid{3, 1, 1}, ditto::Grid{1, 4, 1}, ditto::Grid{1, 1, 5}})
    CHECK_THROWS_WITH_AS(positions.forward(grid, 1, ctx), doctest::Contains("are of 2 x 3 x 4 places"), ditto::Error);
}

TEST_CASE("plain text: a dropped one is zeros that are attended to, others are under their mask") {
  ditto::Context ctx(std::make_shared<ditto::OpTable>(), ditto::Random(0));
  ditto::Batch batch;
  batch["text"] = torch::ones({3, 4, 2});
  batch["text_mask"] = torch::arange(4).lt(torch::tensor({2, 0, 4}).unsqueeze(1));
  batch.lengths["text"] = {2, 0, 4};
  ditto::Conditioning c;
  ditto::set_plain_text(batch, c, ctx);
  CHECK(c.text_BSE.sum({1, 2}).equal(torch::tensor({8.0f, 0.0f, 8.0f})));
  CHECK(c.text_mask_BS.sum(1).equal(torch::tensor({2, 4, 4}, torch::kLong)));
  CHECK(c.text_lengths == std::vector<int64_t>{2, 1, 4});
}
