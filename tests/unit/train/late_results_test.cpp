// A step whose results the host reads when the next one is under way is the step whose results it reads at once.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <set>

#include "tests/support/tiny_training.h"
#include "tests/unit/ranks.h"

namespace ditto {
namespace {

using Words = std::vector<std::string>;

Words with(Words sets, const Words& more) {
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

// In these steps the loss that backward begins with is no number; the samples' losses, which are told, are.
struct Spoils final : StepObserver {
  explicit Spoils(std::set<int64_t> the_steps) : steps(std::move(the_steps)) {}
  void begins(int64_t step, Program& program) override {
    if (!steps.count(step)) return;
    program.loss = [this, inner = std::move(program.loss)](const auto&... of) { return inner(of...) * std::nan(""); };
  }
  std::set<int64_t> steps;
};

// Of a training, all that must not depend on when its results are read.
struct Steps {
  std::vector<StepResult> results;
  Tensors tensors;  // weights, averages, the optimizer's state
  Optimizer::Counters counters;
  int64_t updates = 0, skipped_in_a_row = 0;
  double loss_scale = 0;
};

Steps trained(const std::string& way, const Words& sets, std::set<int64_t> spoiled, int64_t steps = 8) {
  test::TinyTraining tiny("dit_text", with(sets, {"run.read_results=" + way, "run.batch=4", "run.non_finite=skip"}));
  auto training = tiny.step();
  Spoils spoils(std::move(spoiled));
  training.observers.push_back(&spoils);
  training.expect(0);
  Steps made;
  const auto take = [&] {
    for (auto& result : training.results()) made.results.push_back(std::move(result));
  };
  for (int64_t step = 0; step < steps; ++step) {
    CHECK(!training.make(step));
    take();
    CHECK(static_cast<int64_t>(made.results.size()) == step + (training.reads_late() ? 0 : 1));
  }
  training.settle();
  take();
  made.tensors = tiny.weights();
  for (const auto& average : tiny.ema.tensors()) made.tensors.push_back(average.clone());
  for (const auto& [kind, state] : tiny.optimizer->state())
    for (const auto& tensor : state.tensors)
      if (tensor.defined()) made.tensors.push_back(tensor.clone());
  made.counters = tiny.optimizer->counters();
  made.updates = training.updates;
  made.skipped_in_a_row = training.skipped_in_a_row;
  made.loss_scale = training.loss_scale;
  return made;
}

void check_same_number(double a, double b) {
  CHECK((std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b) || (std::isnan(a) && std::isnan(b))));
}

void check_same(const Steps& a, const Steps& b) {
  REQUIRE(a.results.size() == b.results.size());
  for (size_t i = 0; i < a.results.size(); ++i) {
    CAPTURE(i);
    const auto &one = a.results[i], &other = b.results[i];
    CHECK(one.step == static_cast<int64_t>(i) + 1);
    CHECK(other.step == one.step);
    check_same_number(one.loss, other.loss);
    check_same_number(one.grad_norm, other.grad_norm);
    CHECK(one.lr == other.lr);
    CHECK(one.losses == other.losses);
    CHECK(one.samples == other.samples);
    CHECK(one.skipped == other.skipped);
    CHECK(one.updates == other.updates);
    CHECK(one.loss_scale == other.loss_scale);
  }
  REQUIRE(a.tensors.size() == b.tensors.size());
  for (size_t i = 0; i < a.tensors.size(); ++i) CHECK(testing::same_bits(a.tensors[i], b.tensors[i]));
  CHECK(a.counters == b.counters);
  CHECK(a.updates == b.updates);
  CHECK(a.skipped_in_a_row == b.skipped_in_a_row);
  CHECK(a.loss_scale == b.loss_scale);
}

TEST_CASE("read late, results, weights, averages and states are those read at once, whatever is skipped") {
  for (const std::string optimizer : {"adamw", "adamw8bit", "sgd", "lion", "muon", "adafactor", "schedule_free"})
    for (const char* set : {"run.precision=fp32", "run.clip_norm=0.01", "run.precision=bf16"}) {
      CAPTURE(optimizer);
      CAPTURE(set);
      const Words sets{"optimizer.plugin=" + optimizer, set};
      const auto at_once = trained("at_once", sets, {0, 2, 3, 7}), late = trained("late", sets, {0, 2, 3, 7});
      CHECK(late.updates == 4);
      check_same(late, at_once);
    }
}

TEST_CASE("the loss scale that the device computes with is the one that the host counts") {
  const Words sets{"run.precision=fp16", "run.loss_scale=64", "run.loss_scale_every=2"};
  const auto at_once = trained("at_once", sets, {3, 6}, 10), late = trained("late", sets, {3, 6}, 10);
  check_same(late, at_once);
  std::vector<double> scales;
  for (const auto& result : late.results) scales.push_back(result.loss_scale);
  CHECK((scales == std::vector<double>{64, 64, 128, 128, 64, 64, 128, 64, 64, 128}));
}

TEST_CASE("one number is read late without another bit") {
  const Words sets{"run.numerics=one", "run.clip_norm=0.01"};
  check_same(trained("late", sets, {1, 2}), trained("at_once", sets, {1, 2}));
}

TEST_CASE("a step that ends the run does so by its own number, one step later or when all is to be known") {
  for (const bool is_last : {false, true}) {
    test::TinyTraining tiny("dit_text", {"run.read_results=late", "run.batch=4"});
    auto training = tiny.step();
    Spoils spoils({1});
    training.observers.push_back(&spoils);
    training.expect(0);
    training.make(0);
    training.make(1);
    const auto before = tiny.weights();
    CHECK_THROWS_WITH_AS(is_last ? training.settle() : static_cast<void>(training.make(2)),
                         doctest::Contains("step 2: the loss is"), Error);
    const auto after = tiny.weights();
    for (size_t i = 0; i < before.size(); ++i) CHECK(testing::same_bits(before[i], after[i]));
    const auto results = training.results();
    REQUIRE(results.size() == 1);
    CHECK(results[0].step == 1);
  }
}

TEST_CASE("a step that is run by itself is read at once, and after those that are not read yet") {
  test::TinyTraining tiny("dit_text", {"run.read_results=late", "run.batch=4"}), other("dit_text", {"run.batch=4"});
  auto training = tiny.step(), expected = other.step();
  training.expect(0), expected.expect(0);
  training.make(0);
  const auto result = training.run(1);
  expected.run(0);
  check_same_number(result.loss, expected.run(1).loss);
  CHECK(result.step == 2);
}

// As an optimizer of before, or one that says nothing of it.
struct Plain final : Optimizer {
  explicit Plain(Optimizer& of) : inner(of) {}
  void step(const Update& update) override {
    CHECK(!update.skip.defined());
    CHECK(!update.late_clip.defined());
    inner.step(update);
  }
  std::map<std::string, OptimizerState> state() override { return inner.state(); }
  Counters counters() const override { return inner.counters(); }
  void set_counters(const Counters& counters) override { inner.set_counters(counters); }
  Optimizer& inner;
};

TEST_CASE("an optimizer that does not say that it leaves out updates is never asked to") {
  test::TinyTraining late("dit_text", {"run.read_results=late", "run.batch=4"}), any("dit_text", {"run.batch=4"});
  Plain of_late(*late.optimizer), of_any(*any.optimizer);
  CHECK_THROWS_WITH_AS(TrainingStep(late.assembly, late.loader, of_late, late.ema),
                       doctest::Contains("run.read_results: is \"late\", and optimizer \"adamw\""), Error);
  TrainingStep training(any.assembly, any.loader, of_any, any.ema);
  CHECK(!training.reads_late());
  training.expect(0);
  training.make(0);
  CHECK(training.results().size() == 1);
}

}  // namespace
}  // namespace ditto
