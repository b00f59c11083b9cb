// The plugin fit_text: places of an embedded text, and texts that are dropped.
#include <doctest/doctest.h>
#include <torch/types.h>

#include <ditto/encoder.h>
#include <ditto/error.h>
#include <ditto/text_encoder.h>

#include "tests/support/files.h"
#include "tests/support/open_plugin.h"

namespace {

using ditto::Batch;
using ditto::test::contains;
using ditto::test::error_of;
using torch::Tensor;
using Options = std::map<std::string, ditto::OptionValue>;
using Sides = std::vector<int64_t>;

const ditto::TensorSpecs kTexts{{"raw", at::kFloat, {-1, 2}, ""}, {"raw_mask", at::kBool, {-1}, ""}};

std::shared_ptr<ditto::Encoder> fit_text(Options options) {
  options.emplace("takes", "raw");
  return ditto::test::make_plugin<ditto::Encoder>("encoders", "fit_text", options, {kTexts});
}

ditto::Context context(ditto::Phase phase) {
  ditto::Context ctx(std::make_shared<ditto::OpTable>(), ditto::Random(7));
  ctx.phase = phase;
  return ctx;
}

// Texts of 1, 3 and 4 places, whose padding is no zeros.
Batch texts(int64_t first_id = 0) {
  Batch batch;
  batch.ids = {first_id, first_id + 1, first_id + 2};
  batch.weights = {1, 1, 1};
  batch["raw"] = torch::arange(1, 25, at::kFloat).view({3, 4, 2});
  batch["raw_mask"] = ditto::mask_of({1, 3, 4}, 4, at::kCPU);
  batch.lengths["raw"] = {1, 3, 4};
  return batch;
}

Batch encoded(const ditto::Encoder& encoder, Batch batch, ditto::Phase phase) {
  auto ctx = context(ditto::Phase::evaluate);
  batch = encoder.precompute(std::move(batch), ctx);
  ctx.phase = phase;
  return encoder.encode(std::move(batch), ctx);
}

}  // namespace

TEST_CASE("a text has its places: cut where it is longer, zeros beyond it") {
  for (const int64_t tokens : {6, 4, 2}) {
    CAPTURE(tokens);
    const auto encoder = fit_text({{"tokens", tokens}, {"name", "fitted"}});
    CHECK(encoder->makes()[0].name == "fitted");
    CHECK(encoder->makes()[0].shape == Sides{tokens, 2});
    const auto batch = encoded(*encoder, texts(), ditto::Phase::train);
    Tensor expected = torch::zeros({3, tokens, 2});
    const auto given = texts();
    for (const auto& [row, length] : {std::pair{0, 1}, {1, 3}, {2, 4}}) {
      const int64_t kept = std::min<int64_t>(length, tokens);
      expected[row].slice(0, 0, kept).copy_(given.at("raw")[row].slice(0, 0, kept));
    }
    CHECK(batch.at("fitted").equal(expected));
    const Sides lengths{1, std::min<int64_t>(3, tokens), std::min<int64_t>(4, tokens)};
    CHECK(batch.at("fitted_mask").equal(ditto::mask_of(lengths, tokens, at::kCPU)));
    CHECK(batch.lengths.at("fitted") == lengths);
  }
}

TEST_CASE("a dropped text is zeros and keeps its mask; which are, their ids say, in training alone") {
  const auto encoder = fit_text({{"tokens", int64_t{4}}, {"drop", 0.5}, {"name", "raw"}});
  const auto whole = encoded(*encoder, texts(), ditto::Phase::evaluate);
  CHECK(encoded(*encoder, texts(), ditto::Phase::sample).at("raw").equal(whole.at("raw")));
  int64_t dropped = 0;
  for (int64_t first = 0; first < 300; first += 3) {
    const auto batch = encoded(*encoder, texts(first), ditto::Phase::train);
    CHECK(batch.at("raw_mask").equal(whole.at("raw_mask")));
    CHECK(batch.lengths.at("raw") == whole.lengths.at("raw"));
    for (int64_t i = 0; i < 3; ++i) {
      const bool is_zero = batch.at("raw")[i].eq(0).all().item<bool>();
      CHECK((is_zero || batch.at("raw")[i].equal(whole.at("raw")[i])));
      dropped += is_zero;
      auto one = texts(first + i);  // by itself, with the same id in another place
      CHECK(encoded(*encoder, std::move(one), ditto::Phase::train).at("raw")[0].eq(0).all().item<bool>() == is_zero);
    }
  }
  CHECK(dropped > 110);
  CHECK(dropped < 190);
  const auto all = fit_text({{"tokens", int64_t{4}}, {"drop", 1.0}});
  CHECK(encoded(*all, texts(), ditto::Phase::train).at("text").eq(0).all().item<bool>());
}

TEST_CASE("what is no embedded text is refused with what there is") {
  const auto refusal = [](const Options& options, const ditto::TensorSpecs& inputs) {
    return error_of(ditto::ErrorKind::config,
                    [&] { ditto::test::make_plugin<ditto::Encoder>("encoders", "fit_text", options, {inputs}); });
  };
  CHECK(
      contains(refusal({}, kTexts), "takes = \"text\": there is no \"text\" of an embedded text, only: \"raw\" Float"));
  CHECK(contains(refusal({{"takes", "raw"}}, {kTexts[0]}), "there is no \"raw_mask\""));
  CHECK(contains(refusal({{"takes", "caption"}}, {{"caption", at::kByte, {-1}, ""}}), "there is no \"caption\""));
  CHECK(contains(refusal({{"takes", "raw"}, {"name", ""}}, kTexts), "name is empty"));
}
