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

const std::vector<std::vector<int64_t>> kShapes{{37}, {5, 8}};

Tensor gradient(int64_t step, size_t i) { return numbers(kShapes[i], 10 * step + static_cast<int64_t>(i), 0.1); }

// Two parameters with averages, the second with a copy in bf16: as an optimizer moves them, and as a list.
struct Own {
  std::vector<Tensor> weights, average, copies;
  std::shared_ptr<Optimizer> optimizer;

  Own(const std::string& id, const std::map<std::string, OptionValue>& options) {
    Optimizer::Needs needs{{}, nullptr};
    for (size_t i = 0; i < kShapes.size(); ++i) {
      weights.push_back(numbers(kShapes[i], static_cast<int64_t>(i) + 1).requires_grad_());
      average.push_back(weights.back().detach().clone());
      copies.push_back(i == 0 ? Tensor() : torch::zeros(kShapes[i], torch::kBFloat16));
      needs.parameters.push_back({"w" + std::to_string(i), weights.back(), kShapes[i]});
    }
    optimizer = test::make_plugin<Optimizer>("optimizers", id, options, needs);
  }
  void step(int64_t number, const Tensor& skip, const Tensor& clip) {
    for (size_t i = 0; i < weights.size(); ++i) weights[i].mutable_grad() = gradient(number, i);
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

struct Rule {
  std::map<std::string, OptionValue> options;
  std::map<std::string, Attribute> attributes;
  int states;
  bool decays_vectors;
};
const std::map<std::string, Rule> kRules{
    {"adamw",
     {{{"weight_decay", 0.1}, {"decay_vectors", false}},
      {{"weight_decay", 0.1}, {"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}},
      2,
      false}},
    {"lion",
     {{{"weight_decay", 0.1}, {"decay_vectors", false}},
      {{"weight_decay", 0.1}, {"beta1", 0.9}, {"beta2", 0.99}},
      1,
      false}},
    {"sgd",
     {{{"momentum", 0.9}, {"nesterov", true}, {"weight_decay", 0.1}},
      {{"momentum", 0.9}, {"nesterov", true}, {"weight_decay", 0.1}},
      1,
      true}},
};

ListUpdate list_of(const Rule& rule) {
  ListUpdate list;
  for (size_t i = 0; i < kShapes.size(); ++i) {
    ListUpdate::Parameter p{numbers(kShapes[i], static_cast<int64_t>(i) + 1), Tensor()};
    p.first = torch::zeros_like(p.weight);
    if (rule.states > 1) p.second = torch::zeros_like(p.weight);
    p.average = p.weight.clone();
    if (i > 0) p.copy = torch::zeros(kShapes[i], torch::kBFloat16);
    p.decayed = rule.decays_vectors || kShapes[i].size() > 1;
    list.parameters.push_back(p);
  }
  list.lr = 1e-2, list.clip = 0.7, list.decay = 0.9;
  return list;
}

void begin(ListUpdate& list, int64_t step, const Tensor& skip, const Tensor& clip) {
  for (size_t i = 0; i < list.parameters.size(); ++i) list.parameters[i].gradient = gradient(step, i);
  list.skip = skip, list.late_clip = clip, list.step = static_cast<double>(step);
}

std::vector<Tensor> all_of(const ListUpdate& list) {
  const auto &a = list.parameters[0], &b = list.parameters[1];
  std::vector<Tensor> all{a.weight, b.weight, a.average, b.average, b.copy, a.first, b.first};
  if (a.second.defined()) all.push_back(a.second), all.push_back(b.second);
  return all;
}

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

TEST_CASE("an optimizer's own update and its op's are the same to rounding, with what the device alone knows too") {
  for (const auto& [id, rule] : kRules)
    for (const bool late : {false, true}) {
      CAPTURE(id);
      CAPTURE(late);
      int calls = 0;
      const OpTable table({counted(id + "_all", calls)});
      Own own(id, rule.options);
      auto list = list_of(rule);
      for (int64_t step = 1; step <= 3; ++step) {
        const auto skip = late ? torch::scalar_tensor(step == 2, torch::kBool) : Tensor(),
                   clip = late ? torch::scalar_tensor(0.3, torch::kDouble) : Tensor();
        own.step(step, skip, clip);
        begin(list, step, skip, clip);
        CHECK(in_one_call(id + "_all", &table, list, rule.attributes));
      }
      CHECK(calls == 3);
      const auto a = own.all(), b = all_of(list);
      REQUIRE(a.size() == b.size());
      for (size_t i = 0; i < a.size(); ++i) {
        CAPTURE(i);
        CHECK((a[i].to(torch::kDouble) - b[i].to(torch::kDouble)).abs().max().item<double>() < 1e-12);
      }
    }
}

TEST_CASE("a skipped update in one call leaves every bit") {
  for (const auto& [id, rule] : kRules) {
    CAPTURE(id);
    int calls = 0;
    const OpTable table({counted(id + "_all", calls)});
    auto list = list_of(rule);
    begin(list, 1, torch::scalar_tensor(false, torch::kBool), {});
    REQUIRE(in_one_call(id + "_all", &table, list, rule.attributes));
    std::vector<Tensor> before;
    for (const auto& tensor : all_of(list)) before.push_back(tensor.clone());
    begin(list, 2, torch::scalar_tensor(true, torch::kBool), {});
    REQUIRE(in_one_call(id + "_all", &table, list, rule.attributes));
    const auto after = all_of(list);
    for (size_t i = 0; i < after.size(); ++i) CHECK(torch::equal(before[i], after[i]));
    CHECK(calls == 2);
  }
}

TEST_CASE("without a kernel, under exact numerics and in the host's memory optimizers go their own ways") {
  const auto& rule = kRules.at("sgd");
  auto list = list_of(rule);
  begin(list, 1, {}, {});
  const OpTable none;
  CHECK(!in_one_call("sgd_all", &none, list, rule.attributes));
  CHECK(!in_one_call("sgd_all", nullptr, list, rule.attributes));
  CHECK(!in_one_call("sgd_all", &none, std::nullopt, rule.attributes));
  int calls = 0;
  const OpTable exact({counted("sgd_all", calls)}, {}, nullptr, {}, /*exact=*/true);
  CHECK(!in_one_call("sgd_all", &exact, list, rule.attributes));
  CHECK(calls == 0);
  Own own("sgd", rule.options);
  own.step(1, {}, {});
  CHECK(!ListUpdate::of(Update{}, {{"w", own.weights[0], kShapes[0]}}, {}));
}

}  // namespace
}  // namespace ditto
