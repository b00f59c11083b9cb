// The plugins pyramid and noise_condition: what a model that enlarges learns from.
#include <ATen/ops/_upsample_bicubic2d_aa.h>
#include <ATen/ops/avg_pool2d.h>
#include <doctest/doctest.h>
#include <torch/types.h>

#include <ditto/encoder.h>
#include <ditto/error.h>

#include "tests/support/files.h"
#include "tests/support/open_plugin.h"

namespace {

using ditto::Batch;
using ditto::Phase;
using ditto::test::contains;
using ditto::test::error_of;
using torch::Tensor;
using Options = std::map<std::string, ditto::OptionValue>;
using Sides = std::vector<int64_t>;

constexpr int64_t kHigh = 24, kWide = 20;

std::shared_ptr<ditto::Encoder> pyramid(Options options, ditto::TensorSpecs inputs = {}) {
  if (inputs.empty()) inputs = {{"image", at::kFloat, {3, kHigh, kWide}, "-1 … 1"}};
  return ditto::test::make_plugin<ditto::Encoder>("encoders", "pyramid", options, {inputs});
}

std::shared_ptr<ditto::Encoder> noise_condition(Options options, ditto::TensorSpecs inputs = {}) {
  if (inputs.empty()) inputs = {{"low", at::kFloat, {3, 4, 5}, "-1 … 1"}};
  return ditto::test::make_plugin<ditto::Encoder>("encoders", "noise_condition", options, {inputs});
}

// Columns and rows as colours, so that a picture says where it is from.
Batch pictures(std::vector<int64_t> ids, at::ScalarType dtype = at::kFloat) {
  Batch batch;
  batch.ids = std::move(ids);
  batch.weights.assign(batch.ids.size(), 1);
  const auto rows = torch::arange(kHigh, dtype).view({kHigh, 1}).expand({kHigh, kWide});
  const auto columns = torch::arange(kWide, dtype).view({1, kWide}).expand({kHigh, kWide});
  const auto one = torch::stack({rows, columns, (rows * 7 + columns * 3).remainder(11)}) / 24;
  batch["image"] = one.unsqueeze(0).repeat({batch.size(), 1, 1, 1});
  return batch;
}

// In a run of fp64.
Batch encoded(const ditto::Encoder& encoder, Batch batch, Phase phase = Phase::train, std::uint64_t seed = 7) {
  ditto::Context ctx(std::make_shared<ditto::OpTable>(), ditto::Random(seed));
  ctx.compute = at::kDouble;
  ctx.phase = Phase::evaluate;
  batch = encoder.precompute(std::move(batch), ctx);
  ctx.phase = phase;
  return encoder.encode(std::move(batch), ctx);
}

double apart(const Tensor& one, const Tensor& other) { return (one - other).abs().max().item<double>(); }

}  // namespace

TEST_CASE(
    "a small picture is LibTorch's antialiased bicubic of the large one, or its mean, and the large one is left") {
  for (const auto& [high, wide] : {std::pair<int64_t, int64_t>{6, 5}, {12, 10}, {7, 9}, {23, 19}, {1, 1}}) {
    CAPTURE(high);
    const auto batch = pictures({0, 1}, at::kDouble);
    const auto made = encoded(*pyramid({{"size", Sides{high, wide}}}), batch);
    CHECK(torch::equal(made.at("clean"), batch.at("image")));
    const auto theirs = at::_upsample_bicubic2d_aa(batch.at("image"), {high, wide}, false);
    CHECK(apart(made.at("low"), theirs) < 1e-12);
  }
  const auto batch = pictures({0}, at::kDouble);
  const auto made = encoded(*pyramid({{"size", Sides{6, 5}}, {"filter", std::string("area")}}), batch);
  CHECK(apart(made.at("low"), at::avg_pool2d(batch.at("image"), {4, 4})) < 1e-12);
}

TEST_CASE("a part of a picture is the sample's, and the small picture is of that part") {
  const auto encoder = pyramid({{"size", Sides{4, 4}}, {"crop", Sides{8, 12}}, {"name", std::string("few")}});
  CHECK(encoder->makes()[0].shape == Sides{3, 8, 12});
  CHECK(encoder->makes()[1].shape == Sides{3, 4, 4});
  CHECK(encoder->makes()[1].name == "few");
  std::vector<int64_t> ids;
  for (int64_t id = 0; id < 200; ++id) ids.push_back(id);
  const auto batch = pictures(ids, at::kDouble);
  const auto made = encoded(*encoder, batch);
  std::set<std::pair<int64_t, int64_t>> places;
  for (int64_t b = 0; b < 200; ++b) {
    const auto part = made.at("clean")[b];
    const auto row = std::llround(part[0][0][0].item<double>() * 24),
               column = std::llround(part[1][0][0].item<double>() * 24);
    places.insert({row, column});
    CHECK(torch::equal(part, batch.at("image")[b].narrow(1, row, 8).narrow(2, column, 12)));
  }
  // Every first row and column there is: 17 and 9.
  std::set<int64_t> rows, columns;
  for (const auto& [row, column] : places) rows.insert(row), columns.insert(column);
  CHECK(*rows.rbegin() == 16);
  CHECK(rows.size() == 17);
  CHECK(columns.size() == 9);
  CHECK(apart(made.at("few"), at::_upsample_bicubic2d_aa(made.at("clean"), {4, 4}, false)) < 1e-12);

  // Of a sample the same with other neighbours, in a validation too; and another for the next id.
  const auto alone = encoded(*encoder, pictures({17}, at::kDouble), Phase::evaluate);
  CHECK(torch::equal(alone.at("clean")[0], made.at("clean")[17]));
  CHECK(torch::equal(alone.at("few")[0], made.at("few")[17]));
  CHECK(!torch::equal(encoded(*encoder, pictures({17}, at::kDouble), Phase::train, 8).at("clean"), alone.at("clean")));
  CHECK(encoded(*encoder, pictures({}, at::kDouble)).at("few").sizes() == at::IntArrayRef({0, 3, 4, 4}));
}

TEST_CASE("a run of fp64 has what it makes of pictures in fp64, whether they come in fp32 or as they were kept") {
  for (const auto& crop : {Sides{}, Sides{16, 16}}) {
    const auto encoder = pyramid({{"size", Sides{7, 5}}, {"crop", crop}});
    auto kept = pictures({3, 4});
    kept["image"] = kept.at("image").to(at::kDouble);
    const auto read = encoded(*encoder, pictures({3, 4})), again = encoded(*encoder, kept);
    CHECK((read.at("low").scalar_type() == at::kDouble));
    CHECK(torch::equal(read.at("low"), again.at("low")));
  }
  Batch small;
  small.ids = {3, 4};
  small.weights = {1, 1};
  small["low"] = torch::full({2, 3, 4, 5}, 0.1, at::kFloat);
  const auto read = encoded(*noise_condition({}), small);
  small["low"] = small.at("low").to(at::kDouble);
  CHECK((read.at("low").scalar_type() == at::kDouble));
  CHECK(torch::equal(read.at("low"), encoded(*noise_condition({}), small).at("low")));
}

TEST_CASE("what cannot be made small is refused in a sentence") {
  const auto said = [](Options options, ditto::TensorSpecs inputs = {}) {
    return error_of(ditto::ErrorKind::config, [&] { pyramid(options, inputs); });
  };
  CHECK(contains(said({{"size", Sides{24, 20}}}), "is not smaller than what it is made of, 24 x 20"));
  CHECK(contains(said({{"size", Sides{4, 4}}, {"crop", Sides{25, 8}}}), "is a part of pictures of 24 x 20"));
  CHECK(
      contains(said({{"size", Sides{8, 4}}, {"crop", Sides{8, 8}}}), "is not smaller than what it is made of, 8 x 8"));
  CHECK(contains(said({{"size", Sides{4}}}), "is [4], and no rows and columns"));
  CHECK(contains(said({}), "size = [64, 64] is not smaller"));
  CHECK(contains(said({{"size", Sides{4, 4}}, {"name", std::string("clean")}}), "is no name of its own"));
  CHECK(contains(said({{"size", Sides{4, 4}}}, {{"text", at::kFloat, {4, 2}, ""}}), "there is no \"image\""));
  CHECK(contains(said({{"size", Sides{4, 4}}}, {{"image", at::kFloat, {3, -1, -1}, ""}}), "data.size"));
  CHECK(contains(
      said({{"size", Sides{4, 4}}}, {{"image", at::kFloat, {3, 8, 8}, ""}, {"low", at::kFloat, {3, 4, 4}, ""}}),
      "is there already"));
}

TEST_CASE("noise on a small picture is drawn once a sample, at a level of its own, with its time beside it") {
  const auto encoder = noise_condition({{"sigma_data", 0.25}, {"mean", -1.0}, {"std", 0.5}});
  CHECK(encoder->makes()[0].name == "low");
  CHECK(encoder->makes()[1].name == "low_t");
  const auto batch_of = [](std::vector<int64_t> ids) {
    Batch batch;
    batch.ids = std::move(ids);
    batch.weights.assign(batch.ids.size(), 1);
    batch["low"] = torch::ones({batch.size(), 3, 4, 5}, at::kDouble) * 0.5;
    return batch;
  };
  std::vector<int64_t> ids;
  for (int64_t id = 0; id < 500; ++id) ids.push_back(id);
  const auto made = encoded(*encoder, batch_of(ids));
  const auto ln_sigma = made.at("low_t") * 4;
  CHECK(ln_sigma.mean().item<double>() == doctest::Approx(-1).epsilon(0.1));
  CHECK(ln_sigma.std().item<double>() == doctest::Approx(0.5).epsilon(0.1));
  // The noise that was added has mean 0 and variance 1, and is none of the draws of levels.
  const auto sigma = ln_sigma.exp().view({-1, 1, 1, 1});
  const auto noise = (made.at("low") * (0.0625 + sigma * sigma).sqrt() - 0.5) / sigma;
  CHECK(std::abs(noise.mean().item<double>()) < 0.03);
  CHECK(noise.std().item<double>() == doctest::Approx(1).epsilon(0.03));
  CHECK(apart(noise.select(1, 0).select(1, 0).select(1, 0), (ln_sigma + 1) / 0.5) > 0.1);

  const auto alone = encoded(*encoder, batch_of({123}));
  CHECK(torch::equal(alone.at("low")[0], made.at("low")[123]));
  CHECK(torch::equal(alone.at("low_t")[0], made.at("low_t")[123]));
  // A run that samples trusts what it is given.
  const auto sampled = encoded(*encoder, batch_of({1, 2}), Phase::sample);
  CHECK(apart(sampled.at("low_t"), torch::full({2}, std::log(0.002) / 4, at::kDouble)) < 1e-14);
  CHECK(apart(sampled.at("low") * std::sqrt(0.0625 + 4e-6), torch::full({}, 0.5, at::kDouble)) < 0.01);
  const auto noisy = encoded(*noise_condition({{"sample_sigma", 0.5}}), batch_of({1}), Phase::sample);
  CHECK(apart(noisy.at("low_t"), torch::full({1}, std::log(0.5) / 4, at::kDouble)) < 1e-14);
}

TEST_CASE("noise is of a picture that is there, and of its name alone") {
  const auto said = [](Options options, ditto::TensorSpecs inputs = {}) {
    return error_of(ditto::ErrorKind::config, [&] { noise_condition(options, inputs); });
  };
  CHECK(contains(said({{"takes", std::string("small")}}), "there is no such picture, only: "));
  CHECK(contains(said({{"takes", std::string("clean")}}), "is the picture that is learned"));
  CHECK(contains(said({}, {{"low", at::kFloat, {7}, ""}}), "there is no such picture"));
  CHECK(contains(said({}, {{"low", at::kFloat, {3, 4, 4}, ""}, {"low_t", at::kFloat, {}, ""}}), "is there already"));
}
