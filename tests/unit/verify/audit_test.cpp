// An audit: who was wrong, what is drawn, and that it changes no number but those that were wrong.
#include "core/verify/audit.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <random>

#include <torch/types.h>
#include <nlohmann/json.hpp>

#include "tests/support/tiny_training.h"
#include "tests/unit/ranks.h"

namespace ditto {
namespace {

using test::contains;

Prints prints(std::vector<std::uint64_t> hashes) {
  Prints all;
  for (size_t i = 0; i < hashes.size(); ++i)
    all.add(static_cast<std::int64_t>(i), "unit " + std::to_string(i), HashSum{{hashes[i], 0}});
  return all;
}

// By data rank `by` of single ranks.
Computed run(int by, std::vector<std::uint64_t> hashes) {
  return {by, {{"0", by}}, {{"0", prints(std::move(hashes))}}};
}

TEST_CASE("prints that differ are told by the first that does, in the order of a step, and survive a journey") {
  const auto a = prints({1, 2, 3});
  CHECK(a == prints({1, 2, 3}));
  CHECK(a.first_difference(prints({1, 7, 8}))->what == "unit 1");
  CHECK(a.first_difference(prints({1, 2}))->what == "unit 2");
  CHECK_FALSE(a == prints({1, 2}));
  CHECK_FALSE(prints({1, 2}) == a);
  CHECK(a.digest() != prints({1, 2, 4}).digest());
  CHECK(Prints().digest().empty());
  const auto there = nlohmann::json::parse(nlohmann::json(a).dump()).get<Prints>();
  CHECK(there == a);
  CHECK(there.digest() == a.digest());
  Prints twice;
  for (const std::uint64_t part : {4, 5}) twice.add(9, "same", HashSum{{part, 0}});
  REQUIRE(twice.all().size() == 1);
  CHECK(twice.all()[0].hash == HashSum{{9, 0}});
}

TEST_CASE("what two different ranks came to is right, and who came to something else is named with the place") {
  auto verdict = judge({run(0, {1, 2}), run(2, {1, 5}), run(1, {1, 2})}, 3);
  CHECK(verdict.right == 0);
  CHECK(verdict.text == "rank 2 made other numbers than ranks 0 and 1 agree on, first in unit 1");
  verdict = judge({run(0, {9, 2}), run(2, {1, 2}), run(1, {1, 2})}, 3);
  CHECK(verdict.right == 1);
  CHECK(verdict.text == "rank 0 made other numbers than ranks 1 and 2 agree on, first in unit 0");
  verdict = judge({run(0, {1}), run(2, {2}), run(1, {3})}, 3);
  CHECK(verdict.right == -1);
  CHECK(contains(verdict.text, "ranks 0, 1 and 2 came to different numbers in 3 runs"));

  // Two: for a moment, in either, and every time.
  verdict = judge({run(0, {8}), run(1, {1}), run(0, {1}), run(1, {1})}, 2);
  CHECK(verdict.right == 1);
  CHECK(contains(verdict.text, "rank 0 made other numbers than ranks 0 and 1 agree on"));
  verdict = judge({run(0, {1}), run(1, {8}), run(0, {1}), run(1, {1})}, 2);
  CHECK(verdict.right == 0);
  CHECK(contains(verdict.text, "rank 1 made"));
  verdict = judge({run(0, {8}), run(1, {1}), run(0, {8}), run(1, {1})}, 2);
  CHECK(verdict.right == -1);
  CHECK(contains(verdict.text, "no two agree against the others, first in unit 0"));
  CHECK(judge({run(0, {8}), run(1, {1}), run(0, {1}), run(1, {8})}, 2).right == -1);

  // One by itself.
  verdict = judge({run(0, {8}), run(0, {1}), run(0, {1})}, 1);
  CHECK(verdict.right == 1);
  CHECK(verdict.text == "rank 0 made other numbers than in two more runs, first in unit 0");
  CHECK(judge({run(0, {8}), run(0, {1}), run(0, {2})}, 1).right == -1);
}

TEST_CASE("of ranks that share a micro-batch those are named where it parts first") {
  // Stages 0 and 1 of a pipeline: what stage 1 did comes back to stage 0 in its backward.
  const auto staged = [](int by, std::uint64_t first, std::uint64_t second, std::uint64_t back) {
    Computed run{by, {{"0", 2 * by}, {"1", 2 * by + 1}}, {}};
    run.parts["0"].add(0, "the forward of stage 0", HashSum{{first, 0}});
    run.parts["0"].add(9, "the backward of stage 0", HashSum{{back, 0}});
    run.parts["1"].add(1, "the forward of stage 1", HashSum{{second, 0}});
    return run;
  };
  const auto right = staged(0, 1, 2, 3), third = staged(2, 1, 2, 3);
  CHECK(judge({right, staged(1, 1, 7, 8), third}, 3).text ==
        "rank 3 made other numbers than ranks 0, 1, 4 and 5 agree on, first in the forward of stage 1");
  CHECK(judge({right, staged(1, 6, 7, 8), third}, 3).text ==
        "rank 2 made other numbers than ranks 0, 1, 4 and 5 agree on, first in the forward of stage 0");
}

TEST_CASE("the share that is asked for is drawn, and which follows from the seed alone") {
  RunOptions run;
  for (const double share : {0.0, 0.01, 0.3, 1.0}) {
    run.audit = share;
    constexpr int64_t kSteps = 20000, kEach = 5;
    int64_t drawn = 0;
    for (int64_t step = 0; step < kSteps; ++step)
      for (int64_t accumulation = 0; accumulation < kEach; ++accumulation) drawn += is_audited(run, step, accumulation);
    const double mean = share * kSteps * kEach;
    CHECK(std::abs(static_cast<double>(drawn) - mean) <= 5 * std::sqrt(mean * (1 - share)));
  }
  run.audit = 0.5;
  auto other = run;
  other.seed = 1;
  int64_t differ = 0;
  for (int64_t step = 0; step < 1000; ++step) differ += is_audited(run, step, 0) != is_audited(other, step, 0);
  CHECK(differ > 400);
  CHECK(differ < 600);
}

struct Trained {
  std::vector<double> norms;
  Tensors weights;
  std::vector<std::string> said;
  int64_t repeated = 0, differed = 0, calls = 0;
};

// A few steps of configs/MODEL_tiny.toml on one rank; `see` gets the number of each op's call, and what it made.
Trained train(const std::string& model, std::vector<std::string> sets, int64_t steps = 2,
              const std::function<void(int64_t call, const torch::Tensor& made)>& see = {}) {
  sets.insert(sets.end(), {"run.batch=4", "run.micro_batch=2"});
  test::TinyTraining tiny(model, sets);
  auto training = tiny.step();
  Trained result;
  training.say = [&](const std::string& line) { result.said.push_back(line); };
  tiny.assembly.networks->table->watch([&](const std::string&, const OpInputs&, const Tensors& outputs) {
    if (see && outputs[0].defined() && !outputs[0].is_meta()) see(result.calls++, outputs[0]);
  });
  for (int64_t step = 0; step < steps; ++step) result.norms.push_back(training.run(step).grad_norm);
  tiny.assembly.networks->table->watch({});
  result.weights = tiny.weights();
  if (const auto* audit = training.audit()) result.repeated = audit->repeated(), result.differed = audit->differed();
  return result;
}

void check_same(const Trained& a, const Trained& b) {
  CHECK(a.norms == b.norms);
  REQUIRE(a.weights.size() == b.weights.size());
  for (size_t i = 0; i < a.weights.size(); ++i) CHECK(testing::same_bits(a.weights[i], b.weights[i]));
}

TEST_CASE("an audit changes no number, and finds none where nothing is wrong") {
  const std::pair<const char*, const char*> kCases[] = {{"dit_text", "run.numerics=fast"},
                                                        {"dit_text", "run.numerics=one"},
                                                        {"dit_text", "parallel.offload=optimizer"},
                                                        {"st_dit", "run.precision=bf16"},
                                                        {"dit_moe", "parallel.recompute=blocks"}};
  for (const auto& [model, set] : kCases) {
    CAPTURE(model);
    CAPTURE(set);
    const auto alone = train(model, {set}), audited = train(model, {set, "run.audit=1"});
    check_same(alone, audited);
    CHECK(audited.repeated == 4);
    CHECK(audited.differed == 0);
    CHECK(audited.said.empty());
  }
}

TEST_CASE("a bit that flips for a moment is found, and what the step learns from is right all the same") {
  const auto flips_at = [](int64_t at, std::uint64_t place) {
    return [at, place](int64_t call, const torch::Tensor& made) {
      if (call != at || made.scalar_type() != torch::kFloat || made.numel() == 0 || !made.is_contiguous()) return;
      static_cast<std::uint32_t*>(made.data_ptr())[place % static_cast<std::uint64_t>(made.numel())] ^= 1u << 30;
    };
  };
  const auto nothing = [](int64_t, const torch::Tensor&) {};
  const std::vector<std::string> audited{"run.audit=1", "run.audit_policy=redo"};
  const auto right = train("dit_text", audited, 3, nothing);
  CHECK(right.calls > 0);
  CHECK(right.calls % 12 == 0);  // three steps of two micro-batches, each twice
  std::mt19937_64 random(5);
  int64_t found = 0, same = 0;
  for (int i = 0; i < 8; ++i) {
    // In the first step gates are zero, and what they close changes nothing.
    const auto first = static_cast<std::uint64_t>(right.calls) / 3;
    const auto at = static_cast<int64_t>(first + random() % (2 * first));
    CAPTURE(at);
    const auto flipped = train("dit_text", audited, 3, flips_at(at, random()));
    check_same(right, flipped);
    if (flipped.said.empty()) {
      ++same;  // nobody used that number
      continue;
    }
    ++found;
    CHECK(flipped.differed == 1);
    REQUIRE(flipped.said.size() == 2);
    const auto step = std::to_string(1 + at / (right.calls / 3));
    CHECK(contains(flipped.said[0], "audit: step " + step + ", micro-batch "));
    CHECK(contains(flipped.said[0], ": rank 0 made other numbers than in two more runs, first in the "));
    CHECK(flipped.said[1] == "audit: step " + step + " is computed again, with the numbers that were agreed on");
  }
  CHECK(found >= 5);
  MESSAGE(found << " found, " << same << " without effect");
  try {
    train("dit_text", {"run.audit=1"}, 3, flips_at(right.calls / 2, 3));
    FAIL("it went on");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::numeric);
    CHECK(contains(error.what(), "step 2, run.audit: micro-batch "));
  }
}

TEST_CASE("what is wrong in another way each time ends the run, whatever the policy") {
  std::uint64_t call = 0;
  try {
    train("dit_text", {"run.audit=1", "run.audit_policy=redo"}, 1, [&](int64_t, const torch::Tensor& made) {
      if (made.scalar_type() == torch::kFloat && made.is_contiguous() && made.numel() > 0)
        static_cast<std::uint32_t*>(made.data_ptr())[++call % static_cast<std::uint64_t>(made.numel())] ^= 1u << 22;
    });
    FAIL("it went on");
  } catch (const Error& error) {
    CHECK(contains(error.what(), "rank 0 came to different numbers in 3 runs, and no two agree"));
  }
}

TEST_CASE("what need not have the same bits again is refused by name") {
  const auto refused = [](const std::vector<std::string>& sets, const char* part) {
    try {
      Recipe::read(std::string(DITTO_SOURCE_DIR) + "/configs/dit_moe_tiny.toml", sets);
      FAIL("taken");
    } catch (const Error& error) {
      CHECK_MESSAGE(contains(error.what(), part), error.what());
    }
  };
  refused({"run.audit=0.1", "run.deterministic=false"}, "run.audit: does not go with run.deterministic = false");
  refused({"run.audit=0.1", "parallel.expert=2"}, "run.audit: does not go with parallel.expert = 2");
  refused({"run.audit_policy=redo"}, "run.audit is 0");
  refused({"run.audit=1.5"}, "run.audit");
}

}  // namespace
}  // namespace ditto
