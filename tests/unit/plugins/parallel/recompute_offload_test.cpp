// Claim (again): Recomputation and offloading change no bit.
#include <doctest/doctest.h>

#include <ditto/error.h>
#include <ditto/optimizer.h>

#include "core/process/processor.h"
#include "tests/support/files.h"
#include "tests/unit/full_model.h"

namespace ditto {
namespace {

using testing::FullOptions;
using testing::FullRun;
using testing::Named;
using torch::Tensor;

const Named kBlocks{"recompute"}, kEverySecond{"recompute", {{"recompute_every", int64_t{2}}}},
    kAttention{"recompute", {{"recompute", std::string("attention")}}}, kOffload{"offload"};

Named offload(int64_t bytes) { return {"offload", {{"offload_bytes", bytes}}}; }

struct Trained {
  std::map<std::string, Tensor> gradients, weights;
};

// Some steps of AdamW.
Trained train(const Mesh& mesh, at::ScalarType dtype, const std::vector<Named>& strategies, int64_t micro_batches) {
  FullRun rank(mesh, {.depth = 3}, dtype, strategies);
  Registry registry(std::vector<SearchFolder>{{test::plugin_folder(), "the test"}});
  Optimizer::Needs needs{{}, nullptr};
  for (const auto& entry : rank.layout.entries)
    needs.parameters.push_back({entry.name, entry.tensor, entry.full_shape});
  OptionReader none(OptionMap{"optimizer", "the test", {}});
  const auto adamw = registry.factory<Optimizer>("adamw", "the test").make(none, needs);
  Trained result;
  for (int64_t step = 0; step < 3; ++step) {
    rank.step(micro_batches, step);
    for (const auto& [name, gradient] : rank.gradients()) result.gradients[name] = gradient.clone();
    adamw->step({.lr = 1e-2});
    for (auto& entry : rank.layout.entries) entry.tensor.unsafeGetTensorImpl()->bump_version();
    rank.parameters_changed();
  }
  for (const auto& entry : rank.layout.entries) result.weights[entry.name] = entry.tensor.detach().clone();
  return result;
}

void check_bits(const Trained& a, const Trained& b) {
  for (const auto& [name, tensor] : a.weights) {
    CAPTURE(name);
    CHECK(testing::same_bits(tensor, b.weights.at(name)));
    CHECK(testing::same_bits(a.gradients.at(name), b.gradients.at(name)));
  }
}

void check_recomputation(at::ScalarType dtype) {
  const auto mesh = testing::mesh_of_one();
  const auto plain = train(mesh, dtype, {}, 2);
  for (const auto& strategy : {kBlocks, kEverySecond, kAttention}) check_bits(train(mesh, dtype, {strategy}, 2), plain);
}

void check_offload(at::ScalarType dtype) {
  const auto mesh = testing::mesh_of_one();
  const auto plain = train(mesh, dtype, {}, 2);
  for (const int64_t bytes : {0, 20'000, 100'000'000}) check_bits(train(mesh, dtype, {offload(bytes)}, 2), plain);
  check_bits(train(mesh, dtype, {kBlocks, kOffload}, 2), plain);
}

TEST_CASE("recomputation changes no bit, of blocks, every second one, or attention") {
  check_recomputation(torch::kFloat);
}

TEST_CASE("offloading changes no bit, of all, of nothing, or of what a budget leaves; with recomputation too") {
  check_offload(torch::kFloat);
}

TEST_CASE("rank of: the same in bf16" * doctest::skip()) {
  avoid_refused_instructions();
  check_recomputation(torch::kBFloat16);
  check_offload(torch::kBFloat16);
}

TEST_CASE("nor does either of them in bf16") { CHECK(testing::as_ranks(1, "rank of: the same in bf16") == 0); }

TEST_CASE("rank of: replicas that offload" * doctest::skip()) {
  const auto mesh = testing::mesh_of({});
  const auto alone = testing::mesh_of_one();
  for (const int64_t micro_batches : {2, 3}) {
    const auto plain = train(alone, torch::kFloat, {}, micro_batches);
    check_bits(train(mesh, torch::kFloat, {{"ddp"}, kOffload}, micro_batches), plain);
    check_bits(train(mesh, torch::kFloat, {{"ddp"}, kBlocks, offload(20'000)}, micro_batches), plain);
  }
}

TEST_CASE("gradients of offloaded copies are summed over ranks to the bits of one rank") {
  CHECK(testing::as_ranks(2, "rank of: replicas that offload") == 0);
}

TEST_CASE("the budget says how many bytes stay with the model, a weight counted with two states") {
  const auto mesh = testing::mesh_of_one();
  const FullRun whole(mesh, {}, torch::kFloat, {});
  int64_t all = 0;
  for (const auto& entry : whole.layout.entries) all += 3 * static_cast<int64_t>(entry.tensor.nbytes());
  for (const int64_t budget : {int64_t{0}, int64_t{20'000}, all - 1, all}) {
    CAPTURE(budget);
    const FullRun rank(mesh, {}, torch::kFloat, {offload(budget)});
    int64_t stays = 0, smallest = all;
    for (const auto& entry : rank.layout.entries) {
      const int64_t bytes = 3 * static_cast<int64_t>(entry.tensor.nbytes());
      const bool is_here = entry.tensor.is_same(entry.parameter.leaf());
      CHECK(is_here == (entry.tensor.data_ptr() == entry.parameter.leaf().data_ptr()));
      if (is_here)
        stays += bytes;
      else
        smallest = std::min(smallest, bytes);
    }
    CHECK(stays <= budget);
    CHECK((stays == all || stays + smallest > budget));  // nothing more would have fitted
  }
}

TEST_CASE("in bf16 the device is left with the compute copies alone") {
  const auto mesh = testing::mesh_of_one();
  const FullRun rank(mesh, {}, torch::kBFloat16, {kOffload});
  for (const auto& entry : rank.layout.entries) CHECK(entry.parameter.leaf().storage().nbytes() == 0);
}

TEST_CASE("nothing is computed twice where no backward will come") {
  const auto mesh = testing::mesh_of_one();
  FullRun plain(mesh, {}, torch::kFloat, {}), again(mesh, {}, torch::kFloat, {kBlocks});
  const auto prediction = again.predict(3);
  CHECK(testing::same_bits(prediction, plain.predict(3)));
  CHECK(!prediction.requires_grad());
}

TEST_CASE("more blocks between recomputed ones than there are is refused with both numbers") {
  const auto mesh = testing::mesh_of_one();
  try {
    FullRun rank(mesh, {.depth = 3}, torch::kFloat, {{"recompute", {{"recompute_every", int64_t{4}}}}});
    FAIL("not refused");
  } catch (const Error& error) {
    const std::string text = error.what();
    CHECK(text.find("= 4, but the model has 3 blocks") != std::string::npos);
  }
}

}  // namespace
}  // namespace ditto
