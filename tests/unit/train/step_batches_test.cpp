// The next step's micro-batches are there when it begins, and are those that it would have made itself.
#include "core/train/step_batches.h"

#include <doctest/doctest.h>

#include "tests/support/tiny_training.h"
#include "tests/unit/ranks.h"

namespace ditto {
namespace {

using Words = std::vector<std::string>;

Words with(Words sets, const std::string& more) {
  sets.push_back(more);
  return sets;
}

Tensors weights_after(int64_t steps, const Words& sets) {
  test::TinyTraining tiny("dit_text", sets);
  auto training = tiny.step();
  training.expect(0);
  for (int64_t step = 0; step < steps; ++step) training.run(step);
  return tiny.weights();
}

void check_same(const Tensors& a, const Tensors& b) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) CHECK(testing::same_bits(a[i], b[i]));
}

TEST_CASE("weights are the same, bit for bit, whenever samples were encoded") {
  for (const char* set : {"run.micro_batch=2", "loader.threads=0", "run.precision=bf16"}) {
    CAPTURE(set);
    const Words sets{"run.batch=4", set};
    check_same(weights_after(4, with(sets, "loader.encode_ahead=1")), weights_after(4, sets));
  }
}

TEST_CASE("a step leaves the next one's encodings, but the last none") {
  test::TinyTraining tiny("dit_text", {"run.batch=4", "run.steps=2", "loader.encode_ahead=1"});
  auto training = tiny.step();
  CHECK(training.bytes_ahead() == 0);
  training.run(0);
  CHECK(training.bytes_ahead().value() > 0);
  training.run(1);
  CHECK(training.bytes_ahead() == 0);
}

TEST_CASE("what was encoded ahead and is not what is asked for is left") {
  const auto losses = [](const Words& sets) {
    test::TinyTraining tiny("dit_text", sets);
    auto training = tiny.step();
    std::vector<double> all;
    for (const auto& [step, first] :
         std::vector<std::pair<int64_t, int64_t>>{{0, 0}, {1, 4}, {1, 4}, {2, 16}, {3, 20}}) {
      training.samples = first;
      all.push_back(training.run(step).loss);
    }
    return all;
  };
  const Words sets{"run.batch=4"};
  CHECK(losses(with(sets, "loader.encode_ahead=1")) == losses(sets));
}

TEST_CASE("observers hear of what a step has read in that step") {
  struct Reads final : StepObserver {
    void has_read(const Batch& batch) override { ids.insert(ids.end(), batch.ids.begin(), batch.ids.end()); }
    std::vector<int64_t> ids;
  } reads;
  test::TinyTraining tiny("dit_text", {"run.batch=4", "run.micro_batch=2", "loader.encode_ahead=1"});
  auto training = tiny.step();
  training.observers.push_back(&reads);
  for (int64_t step = 0; step < 3; ++step) {
    reads.ids.clear();
    training.run(step);
    CHECK(reads.ids == std::vector<int64_t>{4 * step, 4 * step + 1, 4 * step + 2, 4 * step + 3});
  }
}

}  // namespace
}  // namespace ditto
