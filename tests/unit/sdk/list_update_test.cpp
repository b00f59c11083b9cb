// Updates of all parameters in one call of an op.
#include <doctest/doctest.h>

#include <ditto/list_update.h>
#include <ditto/math/random.h>

#include "tests/support/open_plugin.h"

namespace ditto {
namespace {

using torch::Tensor;

Tensor numbers(std::vector<int64_t> shape, int64_t which, double scale = 1) {
  const int64_t id[] = {which};
  return Random(3).normal(Purpose::noise, id, shape, torch::kDouble).squeeze(0).mul_(scale);
}

// Two parameters, the second with an average and a copy in bf16.
struct Run {
  std::vector<Tensor> weights, average, copies;
  std::shared_ptr<Optimizer> optimizer;

  Run(const std::string& id, const std::map<std::string, OptionValue>& options, const OpTable* ops) {
    Optimizer::Needs needs{{}, nullptr, ops};
    int64_t which = 0;
    for (const auto& shape : std::vector<std::vector<int64_t>>{{37}, {5, 8}}) {
      weights.push_back(numbers(shape, ++which).requires_grad_());
      average.push_back(weights.back().detach().clone());
      copies.push_back(torch::zeros(shape, torch::kBFloat16));
      needs.parameters.push_back({"w" + std::to_string(which), weights.back(), shape});
    }
    copies[0] = Tensor();
    optimizer = test::make_plugin<Optimizer>("optimizers", id, options, needs);
  }
  void step(int64_t number, const Tensor& skip, const Tensor& clip) {
    for (size_t i = 0; i < weights.size(); ++i)
      weights[i].mutable_grad() = numbers(weights[i].sizes().vec(), 10 * number + static_cast<int64_t>(i), 0.1);
    Update update{.lr = 1e-2, .clip = 0.7, .average = average, .decay = 0.9, .copies = copies};
    update.skip = skip, update.late_clip = clip;
    optimizer->step(update);
  }
  std::vector<Tensor> all() const {
    std::vector<Tensor> list{weights[0].detach(), weights[1].detach(), average[0], average[1], copies[1]};
    for (const auto& [kind, state] : optimizer->state())
      for (const auto& tensor : state.tensors) list.push_back(tensor);
    return list;
  }
};

// A kernel that computes what the op means, and counts its calls.
KernelRow counted(const std::string& op, int& calls) {
  KernelRow row{op, "test"};
  row.score = [](const OpCall&) { return 5; };
  row.forward = [&calls, reference = OpTable().op(op).reference](const OpInputs& in) {
    ++calls;
    return reference(in);
  };
  return row;
}

const std::map<std::string, std::map<std::string, OptionValue>> kRules{
    {"adamw", {{"weight_decay", 0.1}, {"decay_vectors", false}}},
    {"lion", {{"weight_decay", 0.1}, {"decay_vectors", false}}},
    {"sgd", {{"momentum", 0.9}, {"nesterov", true}, {"weight_decay", 0.1}}},
};

TEST_CASE("an optimizer's own update and its op's are the same to rounding, with what the device alone knows too") {
  for (const auto& [id, options] : kRules)
    for (const bool late : {false, true}) {
      CAPTURE(id);
      CAPTURE(late);
      int calls = 0;
      const OpTable table({counted(id + "_all", calls)});
      Run own(id, options, nullptr), in_one(id, options, &table);
      for (int64_t step = 1; step <= 3; ++step) {
        const auto skip = late ? torch::scalar_tensor(step == 2, torch::kBool) : Tensor(),
                   clip = late ? torch::scalar_tensor(0.3, torch::kDouble) : Tensor();
        own.step(step, skip, clip);
        in_one.step(step, skip, clip);
      }
      CHECK(calls == 3);
      const auto a = own.all(), b = in_one.all();
      REQUIRE(a.size() == b.size());
      for (size_t i = 0; i < a.size(); ++i) {
        CAPTURE(i);
        CHECK((a[i].to(torch::kDouble) - b[i].to(torch::kDouble)).abs().max().item<double>() < 1e-12);
      }
    }
}

TEST_CASE("a skipped update in one call leaves every bit") {
  for (const auto& [id, options] : kRules) {
    CAPTURE(id);
    int calls = 0;
    const OpTable table({counted(id + "_all", calls)});
    Run run(id, options, &table);
    run.step(1, torch::scalar_tensor(false, torch::kBool), {});
    std::vector<Tensor> before;
    for (const auto& tensor : run.all()) before.push_back(tensor.clone());
    run.step(2, torch::scalar_tensor(true, torch::kBool), {});
    const auto after = run.all();
    for (size_t i = 0; i < after.size(); ++i) CHECK(torch::equal(before[i], after[i]));
    CHECK(calls == 2);
  }
}

TEST_CASE("without a kernel of it, under exact numerics and where a parameter has no gradient, no op is called") {
  const OpTable none;
  Run run("sgd", {}, &none);
  const auto list = [&run] {
    std::vector<OptimizedParameter> parameters;
    for (const auto& weight : run.weights) parameters.push_back({"w", weight, weight.sizes().vec()});
    return ListUpdate::of(Update{}, parameters, {});
  };
  CHECK(!list());
  for (auto& weight : run.weights) weight.mutable_grad() = torch::ones_like(weight);
  REQUIRE(list());
  const std::map<std::string, Attribute> rule{{"momentum", 0.0}, {"nesterov", false}, {"weight_decay", 0.0}};
  CHECK(!in_one_call("sgd_all", &none, list(), rule));
  CHECK(!in_one_call("sgd_all", nullptr, list(), rule));
  int calls = 0;
  const OpTable exact({counted("sgd_all", calls)}, {}, nullptr, {}, /*exact=*/true), table({counted("sgd_all", calls)});
  CHECK(!in_one_call("sgd_all", &exact, list(), rule));
  CHECK(calls == 0);
  CHECK(in_one_call("sgd_all", &table, list(), rule));
  CHECK(calls == 1);
}

}  // namespace
}  // namespace ditto
