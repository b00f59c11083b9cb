// Which tensor of a state is not finite.
#include <doctest/doctest.h>

#include <limits>

#include "core/network/finite.h"
#include "support/checkpoint_world.h"
#include "support/files.h"

using namespace ditto;
using namespace ditto::test;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

// A state whose numbers are all large and finite.
struct World {
  Rank rank{{}, 0, 1};
  checkpoint::TrainState state = rank.state(3);
  World() {
    const torch::NoGradGuard no_grad;
    for (auto& entry : rank.layout.entries) fill(entry.tensor);
    for (auto& tensor : rank.ema) fill(tensor);
    for (auto& [kind, list] : rank.optimizer.tensors)
      for (auto& tensor : list) fill(tensor);
  }
  static void fill(torch::Tensor& tensor) {
    tensor.detach().fill_(tensor.scalar_type() == torch::kDouble ? 1e308 : 3e38);
  }
};

}  // namespace

TEST_CASE("large numbers are finite, and an infinity or no number anywhere is found and its tensor named") {
  World world;
  REQUIRE(not_finite(world.state).empty());
  const auto check = [&](torch::Tensor tensor, const std::string& name) {
    if (tensor.numel() == 0) return;
    auto numbers = tensor.detach().view({-1});
    for (const double bad : {kInf, -kInf, kNan})
      for (const int64_t at : {int64_t{0}, numbers.numel() / 2, numbers.numel() - 1}) {
        const auto before = numbers[at].clone();
        numbers[at] = bad;
        CHECK(not_finite(world.state) == name);
        numbers[at] = before;
      }
  };
  for (size_t i = 0; i < world.rank.layout.entries.size(); ++i) {
    const auto& entry = world.rank.layout.entries[i];
    check(entry.tensor, "weight '" + entry.name + "'");
    check(world.rank.ema[i], "average of '" + entry.name + "'");
    for (const auto& [kind, list] : world.rank.optimizer.tensors)
      check(list[i], "optimizer state '" + kind + "' of '" + entry.name + "'");
  }
  CHECK(not_finite(world.state).empty());
}

TEST_CASE("states of whole numbers, and missing ones, are passed over") {
  World world;
  world.rank.optimizer.tensors["codes"] = {torch::full({3}, 255, torch::kByte)};
  world.rank.optimizer.tensors["none"] = {torch::Tensor()};
  CHECK(not_finite(world.state).empty());
  world.state.optimizer = nullptr;
  world.state.ema = nullptr;
  CHECK(not_finite(world.state).empty());
}

TEST_CASE("what one rank holds is told by all") {
  const auto errors = as_ranks(3, [](int number, const Group& group) {
    World world;
    if (number == 1) world.rank.layout.entries[0].tensor.detach().view({-1})[5] = kNan;
    if (not_finite(world.state, group) != "weight 'embed.weight'") throw std::runtime_error("not told");
  });
  for (const auto& error : errors) CHECK(error.empty());
}

TEST_CASE("weights that are not finite are refused with tensor and checkpoint") {
  World world;
  CHECK_NOTHROW(require_finite(world.rank.layout, "runs/a"));
  world.rank.layout.entries[1].tensor.detach().view({-1})[0] = kInf;
  const auto error = error_of(ErrorKind::checkpoint, [&] { require_finite(world.rank.layout, "runs/a"); });
  CHECK_MESSAGE(contains(error, "runs/a: weight 'blocks.0.qkv.weight' holds numbers that are not finite"), error);
}
