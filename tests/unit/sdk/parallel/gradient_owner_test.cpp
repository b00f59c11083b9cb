// Claim (layouts): Who sums a gradient is said once, at the start: two who would are refused.
#include <doctest/doctest.h>

#include <ditto/error.h>

#include "tests/unit/full_model.h"

namespace ditto {
namespace {

TEST_CASE("rank of: two owners of a sum" * doctest::skip()) {
  const auto mesh = testing::mesh_of({{Axis::shard, 2}, {Axis::replicate, 2}});
  testing::FullRun run(mesh, {}, torch::kDouble, {{"fsdp"}, {"faulty_parallel"}});
  CHECK_THROWS_WITH_AS(
      run.step(4, 1), doctest::Contains("along replicate, and so does parallel.shard_plugin: it would be summed twice"),
      Error);
}

TEST_CASE("a strategy of copies that sums gradients is refused beside one that sums them too") {
  CHECK(testing::as_ranks(4, "rank of: two owners of a sum") == 0);
}

TEST_CASE("rank of: a sum said in the middle of a step" * doctest::skip()) {
  const auto mesh = testing::mesh_of({});
  testing::FullRun run(mesh, {}, torch::kDouble, {{"faulty_parallel", {{"fault", std::string("marks in the step")}}}});
  CHECK_THROWS_WITH_AS(run.step(2, 1), doctest::Contains("strategies declare what they sum by ParallelStrategy::sums"),
                       Error);
}

TEST_CASE("a strategy that sums gradients without having said so at the start is refused") {
  CHECK(testing::as_ranks(2, "rank of: a sum said in the middle of a step") == 0);
}

}  // namespace
}  // namespace ditto
