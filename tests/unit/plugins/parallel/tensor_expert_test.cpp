// Tensor with sequence regions, and expert, against one rank, on real ranks.
#include <doctest/doctest.h>

#include <ditto/error.h>

#include "tests/unit/full_model.h"

namespace ditto {
namespace {

using testing::check_full;
using testing::FullOptions;
using testing::FullRun;
using testing::has;
using testing::Named;
using torch::Tensor;

const Named kTensor{"tensor"}, kSequence{"tensor", {{"sequence", true}}}, kExpert{"expert"};

TEST_CASE("rank of: the whole of tensor" * doctest::skip()) {
  const auto mesh = testing::mesh_of({{Axis::tensor, 2}});
  check_full(mesh, {}, {kTensor}, 2);
  check_full(mesh, {}, {kSequence}, 2);             // 7 tokens on 2 ranks
  check_full(mesh, {.tokens = 8}, {kSequence}, 1);  // 8
  check_full(mesh, {.is_packed = true}, {kSequence}, 1);
}
TEST_CASE("rank of: the whole of tensor with few tokens" * doctest::skip()) {
  const auto mesh = testing::mesh_of({{Axis::tensor, 2}});
  check_full(mesh, {.tokens = 1}, {kSequence}, 1);
}

TEST_CASE("experts, grouped-query heads, cross attention and long skips are cut along tensor, with tokens or without") {
  CHECK(testing::as_ranks(2, "rank of: the whole of tensor") == 0);
}

TEST_CASE("a rank may have no token of a sequence region") {
  CHECK(testing::as_ranks(2, "rank of: the whole of tensor with few tokens") == 0);
}

TEST_CASE("rank of: expert" * doctest::skip()) {
  const auto mesh = testing::mesh_of({{Axis::expert, 2}, {Axis::replicate, 1}});
  check_full(mesh, {}, {kExpert}, 2);
  check_full(mesh, {}, {kExpert}, 3);  // one rank has none in the last accumulation, and lends its experts all the same
}
TEST_CASE("rank of: expert beside tensor and replicas" * doctest::skip()) {
  check_full(testing::mesh_of({{Axis::expert, 2}, {Axis::tensor, 2}}), {}, {kSequence, kExpert}, 2);
}
TEST_CASE("rank of: expert beside replicas" * doctest::skip()) {
  check_full(testing::mesh_of({{Axis::expert, 2}, {Axis::replicate, 2}}), {}, {kExpert}, 5);
}
TEST_CASE("rank of: expert beside shards" * doctest::skip()) {
  check_full(testing::mesh_of({{Axis::expert, 2}, {Axis::shard, 3}}), {}, {kExpert, {"fsdp"}}, 8);
}

TEST_CASE("experts dealt out among ranks learn what they learn on one, though a rank has no micro-batch left") {
  CHECK(testing::as_ranks(2, "rank of: expert") == 0);
  CHECK(testing::as_ranks(4, "rank of: expert beside tensor and replicas") == 0);
  CHECK(testing::as_ranks(4, "rank of: expert beside replicas") == 0);
  CHECK(testing::as_ranks(6, "rank of: expert beside shards") == 0);
}

using Calls = std::map<std::string, int64_t>;
// Calls along an axis in one pass.
Calls calls(const Mesh& mesh, const std::string& axis, Traffic::Pass pass) {
  Calls result;
  for (const auto& [key, count] : mesh.traffic().counts())
    if (key.axes == axis && key.pass == pass) result[key.op] += count.calls;
  return result;
}

// A block has 4 pairs of cut layers: attention, cross attention, MLP, experts; and a gathered modulation.
TEST_CASE("rank of: counts of tensor" * doctest::skip()) {
  const auto mesh = testing::mesh_of({{Axis::tensor, 2}});
  const FullOptions options{.depth = 3, .tokens = 8};
  const auto count = [&](const std::vector<Named>& strategies) {
    FullRun rank(mesh, options, torch::kDouble, strategies);
    mesh.traffic().clear();
    rank.step(1, 1);
  };
  count({kTensor});
  CHECK((calls(mesh, "tensor", Traffic::Pass::forward) == Calls{{"all_reduce", 3 * 4}, {"all_gather", 3}}));
  CHECK((calls(mesh, "tensor", Traffic::Pass::backward) == Calls{{"all_reduce", 3 * 4}, {"reduce_scatter", 3}}));
  count({kSequence});  // and the tokens are joined at the end
  CHECK((calls(mesh, "tensor", Traffic::Pass::forward) == Calls{{"all_gather", 3 * 5 + 1}, {"reduce_scatter", 3 * 4}}));
  CHECK(
      (calls(mesh, "tensor", Traffic::Pass::backward) == Calls{{"reduce_scatter", 3 * 5 + 1}, {"all_gather", 3 * 4}}));
  count({kTensor, {"recompute"}});
  CHECK((calls(mesh, "tensor", Traffic::Pass::recompute) == Calls{{"all_reduce", 3 * 4}, {"all_gather", 3}}));
  CHECK((calls(mesh, "tensor", Traffic::Pass::backward) == Calls{{"all_reduce", 3 * 4}, {"reduce_scatter", 3}}));
  count({kTensor, {"recompute", {{"recompute_every", int64_t{2}}}}});
  CHECK((calls(mesh, "tensor", Traffic::Pass::recompute) == Calls{{"all_reduce", 2 * 4}, {"all_gather", 2}}));
}

TEST_CASE("tensor asks for one all-reduce a pair of layers and way, sequence for a gather and a reduce-scatter") {
  CHECK(testing::as_ranks(2, "rank of: counts of tensor") == 0);
}

TEST_CASE("rank of: counts of expert" * doctest::skip()) {
  const auto mesh = testing::mesh_of({{Axis::expert, 2}, {Axis::replicate, 1}});
  FullRun rank(mesh, {}, torch::kDouble, {kExpert});
  mesh.traffic().clear();
  rank.step(2, 1);
  CHECK((calls(mesh, "expert", Traffic::Pass::forward) == Calls{{"exchange", 2 * 2}, {"exchange_counts", 2}}));
  CHECK((calls(mesh, "expert", Traffic::Pass::backward) == Calls{{"exchange", 2 * 2}}));
}

TEST_CASE("expert asks for two exchanges of rows a layer and way, and one of counts") {
  CHECK(testing::as_ranks(2, "rank of: counts of expert") == 0);
}

std::string refusal(const Mesh& mesh, const FullOptions& options, const Named& strategy) {
  try {
    FullRun rank(mesh, options, torch::kDouble, {strategy});
  } catch (const Error& error) {
    CHECK((error.kind() == ErrorKind::config));
    return error.what();
  }
  return "not refused";
}

TEST_CASE("rank of: refusals of tensor" * doctest::skip()) {
  const auto tensor = testing::mesh_of({{Axis::tensor, 2}});
  has(refusal(tensor, {.hidden = 7}, kTensor), "2 does not divide the 7 hidden numbers of \"blocks.0.experts\"");
  has(refusal(tensor, {.is_token_local = false}, kSequence), "parallel.sequence");
}
TEST_CASE("rank of: part of the tokens" * doctest::skip()) {
  const auto mesh = testing::mesh_of({{Axis::tensor, 2}});
  for (const int64_t tokens : {7, 8}) {
    FullRun rank(mesh, {.tokens = tokens, .takes_a_part = true}, torch::kDouble, {kSequence});
    try {
      rank.predict(7);
      FAIL("not refused");
    } catch (const Error& error) {
      CHECK((error.kind() == ErrorKind::plugin));
      has(error.what(), "layer \"blocks.0.up\": is given a tensor of [2, ");
      has(error.what(), "of the stream's " + std::to_string(tokens) + " tokens");
    }
  }
}
TEST_CASE("rank of: refusals of expert" * doctest::skip()) {
  const auto expert = testing::mesh_of({{Axis::expert, 2}, {Axis::replicate, 1}});
  has(refusal(expert, {.has_experts = false}, kExpert), "has no experts");
  has(refusal(expert, {.experts = 5}, kExpert), "2 does not divide the 5 experts of \"blocks.0.experts\"");
}

TEST_CASE("a layer that takes part of a sequence region's tokens is refused by its name instead of waited for") {
  CHECK(testing::as_ranks(2, "rank of: part of the tokens") == 0);
}

TEST_CASE("what tensor and expert cannot cut is refused with the numbers") {
  CHECK(testing::as_ranks(2, "rank of: refusals of tensor") == 0);
  CHECK(testing::as_ranks(2, "rank of: refusals of expert") == 0);
}

}  // namespace
}  // namespace ditto
