// A time for each frame of a video: rows of the conditioning, the schedule and its losses, against formulas by hand.
//
// Legend: B samples, F frames, P places of a frame, T = F P tokens, D width.
#include <doctest/doctest.h>

#include <torch/types.h>

#include <ditto/diffusion/denoising.h>
#include <ditto/error.h>
#include <ditto/parallel/pack.h>

#include "core/plugin/registry.h"
#include "tests/support/files.h"
#include "tests/unit/small_model.h"

namespace ditto {
namespace {

using testing::numbers;
using testing::small_context;
using torch::Tensor;

constexpr int64_t kD = 8;

bool same(const Tensor& a, const Tensor& b) { return a.sizes() == b.sizes() && torch::allclose(a, b, 1e-12, 1e-12); }

// x <- norm(x) * (1 + scale) + shift, each token by the row of its frame.
Tensor by_hand(const Tensor& x_BTD, const Tensor& shift_BFD, const Tensor& scale_BFD, int64_t places) {
  const auto normed = torch::layer_norm(x_BTD, {kD}, {}, {}, 1e-6);
  const auto rows = [&](const Tensor& c_BFD) { return c_BFD.repeat_interleave(places, 1); };
  return normed * (1 + rows(scale_BFD)) + rows(shift_BFD);
}

TEST_CASE("modulation by frames: each token by its frame's row, in slices and in packs too") {
  const auto ctx = small_context(torch::kDouble);
  const Grid grid{3, 2, 2};
  const auto x = numbers({2, 12, kD}, 1, torch::kDouble), y = numbers({2, 12, kD}, 2, torch::kDouble);
  const auto shift = numbers({2, 3, kD}, 3, torch::kDouble).tanh(),
             scale = numbers({2, 3, kD}, 4, torch::kDouble).tanh();
  Sequence whole;
  whole.grid = grid;
  const auto expected = by_hand(x, shift, scale, 4);
  CHECK(same(ctx->ops.norm_modulate(x, shift, scale, whole), expected));
  const auto gated = x + shift.repeat_interleave(4, 1) * y;
  CHECK(same(ctx->ops.gated_residual(x, shift, y, whole), gated));

  Sequence slice = whole;  // of context ranks and sequence regions: tokens 3 to 8
  slice.first_token = 2;
  slice.region_offset = 1;
  const auto part = [](const Tensor& of) { return of.narrow(1, 3, 6); };
  CHECK(same(ctx->ops.norm_modulate(part(x), shift, scale, slice), part(expected)));
  CHECK(same(ctx->ops.gated_residual(part(x), shift, part(y), slice), part(gated)));

  Sequence pack;  // both samples, and one of another size before them
  pack.packing = packing_of({6, 12, 12}, torch::kCPU, {{2, 1, 3}, grid, grid});
  const auto z = numbers({1, 6, kD}, 5, torch::kDouble), c = numbers({1, 2, kD}, 6, torch::kDouble).tanh();
  const auto row = [](const Tensor& first, const Tensor& others) {
    return torch::cat({first.flatten(0, 1), others.flatten(0, 1)}).unsqueeze(0);
  };
  const auto found = ctx->ops.norm_modulate(row(z, x), row(c, shift), row(c, scale), pack);
  CHECK(same(found, row(by_hand(z, c, c, 3), expected)));
  pack.packing = packing_of({6, 12, 12}, torch::kCPU);
  CHECK_THROWS_WITH_AS(ctx->ops.norm_modulate(row(z, x), row(c, shift), row(c, scale), pack),
                       doctest::Contains("does not say its samples' grids"), Error);
}

TEST_CASE("conditioning of frames is one row of a pack, and each part's own again") {
  Batch batch;
  batch.parts.resize(2);
  batch.parts[0].ids = {0, 1};
  batch.parts[1].ids = {2};
  const auto a = numbers({2, 3, kD}, 1), b = numbers({1, 2, kD}, 2);
  auto packed = pack({Conditioning{a, {}, {}}, Conditioning{b, {}, {}}}, batch);
  CHECK((packed.cond_BD.sizes() == at::IntArrayRef({1, 8, kD})));
  Stream stream;
  stream.packing = packing_of({12, 12, 6}, torch::kCPU, {{3, 2, 2}, {3, 2, 2}, {2, 1, 3}});
  stream.condition = std::move(packed);
  CHECK(part_of_pack(stream, batch, 0).condition.cond_BD.equal(a));
  CHECK(part_of_pack(stream, batch, 1).condition.cond_BD.equal(b));
}

template <class Kind>
std::shared_ptr<Kind> make(const std::string& id, const typename Kind::Needs& needs, OptionMap options = {}) {
  Registry registry(std::vector<SearchFolder>{{test::plugin_folder(), "the test"}});
  OptionReader reader(std::move(options));
  return registry.factory<Kind>(id, "the test").make(reader, needs);
}

OptionMap section_options(const std::string& section, const std::map<std::string, OptionValue>& values) {
  OptionMap map{section, "the test", {}};
  for (const auto& [name, value] : values) map.given[name] = {value, "the test"};
  return map;
}

std::shared_ptr<Model> video_model(int64_t patch_frames = 1) {
  return make<Model>("st_dit", {{{"x", torch::kFloat, {2, 4, 4, 4}, ""}, {"t", torch::kFloat, {}, ""}}, 2},
                     section_options("model", {{"depth", int64_t{2}},
                                               {"width", int64_t{24}},
                                               {"heads", int64_t{2}},
                                               {"patch", int64_t{2}},
                                               {"patch_frames", patch_frames}}));
}

TEST_CASE("x_t, the model's time and the loss of each frame are of its own time") {
  const auto model = video_model();
  const auto map = section_options("objective", {{"time_per", std::string("frame")}, {"condition_dropout", 0.0}});
  for (const std::string id : {"rectified_flow", "iddpm"}) {
    CAPTURE(id);
    const auto schedule = make<Scheduler>(id, {}, section_options("scheduler", {}));
    const auto objective = make<Objective>("diffusion", {model.get(), schedule.get()}, map);
    const auto ctx = small_context(torch::kDouble);
    ctx->phase = Phase::train;
    Batch batch;
    batch.ids = {3, 8};
    batch.weights = {1, 1};
    batch["clean"] = numbers({2, 2, 4, 4, 4}, 1, torch::kDouble).tanh();
    const auto prepared = objective->prepare(batch, *ctx);
    const auto &time_BF = prepared.at("time"), &noise = prepared.at("noise"), &clean = prepared.at("clean");
    REQUIRE((time_BF.sizes() == at::IntArrayRef({2, 4})));
    CHECK(!time_BF.select(1, 0).equal(time_BF.select(1, 1)));
    // Frames one by one, each with its own time as the sample's.
    const auto channels = schedule->out_channels(2);
    const auto prediction = numbers({2, channels, 4, 4, 4}, 2, torch::kDouble).tanh();
    std::map<std::string, Tensor> sums;
    for (int64_t f = 0; f < 4; ++f) {
      const auto frame = [&](const Tensor& x) { return x.narrow(2, f, 1); };
      const auto t_B = time_BF.select(1, f);
      CHECK(same(frame(prepared.at("x_t")), schedule->corrupt(frame(clean), frame(noise), t_B)));
      CHECK(same(frame(schedule->precondition(prediction, prepared.at("x_t"), time_BF)),
                 schedule->precondition(frame(prediction), frame(prepared.at("x_t")), t_B)));
      for (const auto& [name, loss] : schedule->losses(frame(prediction), frame(clean), frame(noise), t_B))
        sums[name] = sums.count(name) ? sums[name] + loss / 4 : loss / 4;
    }
    const auto losses = objective->losses({{"prediction", prediction}}, prepared, *ctx);
    CHECK(losses.size() == sums.size());
    for (const auto& [name, loss] : losses) CHECK(same(loss, sums.at(name)));
  }
}

Tensor predict(Model& model, const Tensor& x, const Tensor& t) {
  torch::NoGradGuard no_grad;
  const auto ctx = small_context(torch::kDouble);
  Batch batch;
  batch.ids = {0, 1};
  batch.weights = {1, 1};
  batch["x"] = x;
  batch["t"] = t;
  ModelProgram program(model, *ctx);
  auto stream = program.begin(batch);
  program.blocks(0, model.depth(), stream);
  return program.head(stream, batch).at("prediction");
}

TEST_CASE("frames of one time are a sample of that time, and a frame's time changes what it is for all") {
  const auto model = video_model();
  testing::fill(*model, torch::kDouble);
  const auto x = numbers({2, 2, 4, 4, 4}, 1, torch::kDouble).tanh();
  const auto t_B = torch::tensor({0.25, 0.75});
  const auto of_samples = predict(*model, x, t_B);
  auto t_BF = t_B.unsqueeze(1).repeat({1, 4});
  CHECK(same(predict(*model, x, t_BF), of_samples));
  t_BF[1][2] = 0.5;
  const auto other = predict(*model, x, t_BF);
  CHECK(same(other[0], of_samples[0]));
  for (int64_t f = 0; f < 4; ++f) CHECK(!same(other[1].select(1, f), of_samples[1].select(1, f)));
}

TEST_CASE("times of frames are refused where a model takes one of each sample") {
  const auto schedule = make<Scheduler>("rectified_flow", {}, section_options("scheduler", {}));
  const auto map = section_options("objective", {{"time_per", std::string("frame")}});
  const testing::SmallModel small;
  const auto two_frames = video_model(2);
  for (const Model* model : {static_cast<const Model*>(&small), static_cast<const Model*>(two_frames.get())})
    CHECK_THROWS_WITH_AS(make<Objective>("diffusion", {model, schedule.get()}, map),
                         doctest::Contains("the model takes one time for each sample"), Error);
}

}  // namespace
}  // namespace ditto
