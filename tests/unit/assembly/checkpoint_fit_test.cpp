// Weights of a model that is not quite this one: what is new, left out, skipped and interpolated, on any layout.
#include <doctest/doctest.h>

#include <algorithm>

#include "core/assembly/fit.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/positions.h"
#include "support/checkpoint_world.h"
#include "support/files.h"

namespace checkpoint = ditto::checkpoint;
using checkpoint::Fit;
using checkpoint::Fitted;
using checkpoint::Which;
using ditto::Axis;
using ditto::ErrorKind;
using torch::Tensor;
using Names = std::vector<std::string>;
using namespace ditto::test;

namespace {

constexpr uint64_t kSaved = 3, kHere = 4;

// Ten classes and two blocks there; three classes and another two blocks, one of them new, here.
const std::vector<ParameterSpec> kThere{
    {"label.table", {11, 6}},
    {"blocks.0.up.weight", {12, 6}, at::kFloat, {{Axis::tensor, {0, {12}}}, {Axis::shard, {1, {6}}}}, 0},
    {"blocks.1.up.weight", {12, 6}, at::kFloat, {{Axis::tensor, {0, {12}}}, {Axis::shard, {1, {6}}}}, 1},
    {"out.weight", {4, 6}}};
const std::vector<ParameterSpec> kNow{
    {"label.table", {4, 6}, at::kFloat, {{Axis::shard, {0, {4}}}}},
    {"blocks.0.up.weight", {12, 6}, at::kFloat, {{Axis::tensor, {0, {12}}}, {Axis::shard, {1, {6}}}}, 0},
    {"blocks.2.up.weight", {12, 6}, at::kFloat, {{Axis::tensor, {0, {12}}}, {Axis::shard, {1, {6}}}}, 1},
    {"out.weight", {4, 6}}};

const std::vector<Degrees> kFitLayouts{
    {}, {{Axis::tensor, 2}, {Axis::shard, 3}}, {{Axis::shard, 8}}, {{Axis::pipeline, 2}, {Axis::tensor, 2}}};

std::string saved(const TemporaryFolder& folder) {
  save_world(folder / "c", {}, kSaved, 600, kThere);
  return folder / "c/step_00000600";
}

Fit lenient() { return {Fit::Missing::keep, Fit::Extra::skip, Fit::OtherShape::skip, {}}; }

// The tensor of this name, as it lies on this rank in a world of these specs.
const Tensor& held(const Rank& rank, const std::string& name) { return rank.layout.at(name).tensor; }

}  // namespace

TEST_CASE("what fits is taken bit for bit and what does not keeps its values, on every layout") {
  const TemporaryFolder folder;
  const auto path = saved(folder);
  for (const auto& degrees : kFitLayouts) {
    for (int number = 0; number < FakeMesh(degrees, 0).world_size(); ++number) {
      Rank rank(degrees, number, kHere, kNow), before(degrees, number, kHere, kNow),
          source(degrees, number, kSaved, kNow);
      checkpoint::load_weights(path, rank.layout, Which::weights, lenient());
      for (const auto& entry : rank.layout.entries) {
        CAPTURE(entry.name);
        const bool fits = entry.name == "blocks.0.up.weight" || entry.name == "out.weight";
        CHECK(same_bits(entry.tensor, held(fits ? source : before, entry.name)));
      }
    }
  }
}

TEST_CASE("all ranks together say once what became of each tensor") {
  const TemporaryFolder folder;
  const auto path = saved(folder);
  for (const auto& degrees : kFitLayouts) {
    const int count = FakeMesh(degrees, 0).world_size();
    std::vector<Names> told(static_cast<size_t>(count));
    const auto errors = as_ranks(count, [&](int number, const ditto::Group& group) {
      Rank rank(degrees, number, kHere, kNow);
      const auto fitted = checkpoint::load_weights(path, rank.layout, Which::weights, lenient());
      told[static_cast<size_t>(number)] = ditto::fit_report(fitted, lenient(), path, group);
    });
    for (const auto& error : errors) CHECK(error == "");
    for (const auto& lines : told)
      CHECK(lines == Names{"left out (1): blocks.1.up.weight", "new (1): blocks.2.up.weight",
                           "skipped (1): label.table [11, 6] -> [4, 6]"});
  }
}

TEST_CASE("each of the three is refused unless it is asked for, and then nothing has changed") {
  const TemporaryFolder folder;
  const auto path = saved(folder);
  Rank rank({}, 0, kHere, kNow);
  const Rank before({}, 0, kHere, kNow);
  const auto error = [&](const Fit& fit) {
    const auto text =
        error_of(ErrorKind::checkpoint, [&] { checkpoint::load_weights(path, rank.layout, Which::weights, fit); });
    CHECK(rank.same_as(before));
    return text;
  };
  Fit fit = lenient();
  fit.missing = Fit::Missing::refuse;
  CHECK(contains(error(fit), "tensor 'blocks.2.up.weight' is not there"));
  fit = lenient();
  fit.extra = Fit::Extra::refuse;
  CHECK(contains(error(fit), "tensor 'blocks.1.up.weight' is there, and has no place here"));
  fit = lenient();
  fit.other_shape = Fit::OtherShape::refuse;
  CHECK(contains(error(fit), "tensor 'label.table' is F32 [11, 6] there and F32 [4, 6] here"));
  fit.other_shape = Fit::OtherShape::positions;  // a table, but not of positions
  CHECK(contains(error(fit), "tensor 'label.table' is F32 [11, 6] there and F32 [4, 6] here"));
}

TEST_CASE("an extra tensor is refused where no stage of a pipeline can tell by itself") {
  const TemporaryFolder folder;
  const auto path = saved(folder);
  Fit fit = lenient();
  fit.extra = Fit::Extra::refuse;
  const auto errors = as_ranks(2, [&](int number, const ditto::Group& group) {
    Rank rank({{Axis::pipeline, 2}}, number, kHere, kNow);
    ditto::fit_report(checkpoint::load_weights(path, rank.layout, Which::weights, fit), fit, path, group);
  });
  for (const auto& error : errors) CHECK(contains(error, "tensor 'blocks.1.up.weight', which has no place"));
}

TEST_CASE("weights of which nothing fits are refused") {
  const TemporaryFolder folder;
  const auto path = saved(folder);
  Rank rank({}, 0, kHere, {{"something.else", {3}}});
  const auto fitted = checkpoint::load_weights(path, rank.layout, Which::weights, lenient());
  CHECK(contains(error_of(ErrorKind::checkpoint, [&] { ditto::fit_report(fitted, lenient(), path, {}); }),
                 "has no tensor that fits this model"));
}

TEST_CASE("tables of positions are interpolated, each rank keeping what it holds") {
  const TemporaryFolder folder;
  // Places 0.5, 1.5, … of a coarse grid and a finer one over the same picture: inside, a linear table stays linear.
  const auto line = [](int64_t n) {
    return ((torch::arange(n, torch::kFloat) + 0.5) / n).view({n, 1}).expand({n, 4}).contiguous();
  };
  const auto square = [&](int64_t n) { return (line(n).unsqueeze(1) + 2 * line(n).unsqueeze(0)).contiguous(); };
  const auto box = [&](int64_t n) { return (square(n).unsqueeze(0) + 3 * line(n).view({n, 1, 1, 4})).contiguous(); };
  for (const auto& [from, to] : {std::pair{line(8), line(16)}, {square(8), square(16)}, {box(8), box(16)}}) {
    auto inner = [&](Tensor x) {
      for (int64_t d = 0; d + 1 < x.dim(); ++d) x = x.narrow(d, 4, 8);
      return x;
    };
    const auto finer = checkpoint::interpolated(from, to.sizes().vec());
    CHECK(finer.sizes() == to.sizes());
    const double tolerance = from.dim() == 3 ? 0.02 : 1e-5;  // bicubic keeps lines but nearly
    CHECK((inner(finer) - inner(to)).abs().max().item<double>() <= tolerance);
    CHECK(same_bits(checkpoint::interpolated(from, from.sizes().vec()), from));
  }
  CHECK(!checkpoint::can_interpolate({8, 4}, {16, 6}));
  CHECK(!checkpoint::can_interpolate({8, 4}, {4, 4, 4}));

  Rank there({}, 0, kSaved, {{"positions", {8, 8, 4}}, {"out.weight", {4, 6}}});
  {
    torch::NoGradGuard no_grad;
    there.layout.entries[0].tensor.copy_(square(8));
  }
  checkpoint::save_weights(folder / "w", there.layout, "[model]\n", {});
  const std::vector<ParameterSpec> now{{"positions", {16, 16, 4}, at::kFloat, {{Axis::shard, {0, {16}}}}},
                                       {"out.weight", {4, 6}}};
  const Fit fit{Fit::Missing::refuse, Fit::Extra::refuse, Fit::OtherShape::positions, {"positions"}};
  const auto whole = checkpoint::interpolated(square(8), {16, 16, 4});
  for (const Degrees& degrees : {Degrees{}, Degrees{{Axis::shard, 3}}}) {
    int64_t rows = 0;
    for (int number = 0; number < FakeMesh(degrees, 0).world_size(); ++number) {
      Rank rank(degrees, number, kHere, now);
      const auto fitted = checkpoint::load_weights(folder / "w", rank.layout, Which::weights, fit);
      CHECK(fitted.interpolated == Names{"positions [8, 8, 4] -> [16, 16, 4]"});
      for (const auto& part : rank.layout.at("positions").slices()) {
        CHECK(same_bits(held(rank, "positions").narrow(0, part.local_start[0], part.size[0]),
                        whole.narrow(0, part.global_start[0], part.size[0])));
        rows += part.size[0];
      }
    }
    CHECK(rows == 16);
  }
}
