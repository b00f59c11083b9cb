// Claim (again): A probe looks on: it sees what a step makes, and changes no number of it.
#include "core/diff/probe.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>

#include "core/diff/compare.h"
#include "tests/support/tiny_training.h"
#include "tests/unit/ranks.h"

namespace ditto::diff {
namespace {

struct Trained {
  std::vector<double> norms;
  Tensors weights;
  Events events;
};

// Two steps of configs/MODEL_tiny.toml on one rank.
Trained train(const std::string& model, std::vector<std::string> sets, bool is_looked_at) {
  sets.insert(sets.end(), {"run.batch=4", "run.micro_batch=2"});
  test::TinyTraining tiny(model, sets);
  std::optional<Probe> probe;
  if (is_looked_at) probe.emplace(tiny.assembly);
  auto training = tiny.step();
  if (probe) training.observers.push_back(&*probe);
  Trained result;
  for (int64_t step = 0; step < 2; ++step) result.norms.push_back(training.run(step).grad_norm);
  result.weights = tiny.weights();
  if (probe) result.events = probe->events();
  return result;
}

TEST_CASE("a probe changes no number, and sees units, ops, gradients and weights by name") {
  for (const std::string model : {"dit_text", "st_dit"})
    for (const char* set : {"run.precision=fp32", "parallel.recompute=blocks"}) {
      CAPTURE(model);
      CAPTURE(set);
      const auto looked_at = train(model, {set}, true), again = train(model, {set}, true);
      CHECK(compare(looked_at.events, again.events).is_same());
      CHECK(compare(looked_at.events, again.events).in_parts == 0);
      CHECK(compare(looked_at.events, again.events).only_a == 0);
      std::set<std::string> seen;
      for (const auto& [key, event] : looked_at.events.all()) seen.insert(to_text(key));
      for (const char* what :
           {"step 1, forward, batch, makes: noise", "step 1, forward, condition, makes: cond",
            "step 2, forward, block 0, reads: x", "step 2, forward, block 1, makes: x",
            "step 1, forward, block 0, attention: q", "step 1, forward, block 0, attention: out",
            "step 1, forward, head, makes: prediction", "step 1, backward, head, makes: gradient of prediction",
            "step 1, backward, block 0, makes: gradient of x", "step 2, update, run, makes: gradient norm"}) {
        CAPTURE(what);
        CHECK(seen.count(what) == 1);
      }
      for (const char* part : {"block 1, uses: blocks.1.", "block 0, linear blocks.0.", "sums the gradient: blocks.1.",
                               "updates: blocks.1."}) {
        CAPTURE(part);
        CHECK(std::any_of(seen.begin(), seen.end(), [&](const auto& text) { return test::contains(text, part); }));
      }
      const bool again_in_backward = std::string(set) != "run.precision=fp32";
      CHECK(seen.count("step 1, backward, block 0, attention: gradient of q") == (again_in_backward ? 0 : 1));
      const auto alone = train(model, {set}, false);
      CHECK(alone.norms == looked_at.norms);
      REQUIRE(alone.weights.size() == looked_at.weights.size());
      for (size_t i = 0; i < alone.weights.size(); ++i) CHECK(torch::equal(alone.weights[i], looked_at.weights[i]));
    }
}

TEST_CASE("other numbers are named where they begin") {
  const auto a = train("dit_text", {}, true), b = train("dit_text", {"run.seed=1"}, true);
  const auto seeds = compare(a.events, b.events);
  REQUIRE(!seeds.is_same());
  CHECK(test::contains(to_text(seeds.first.front().key), "step 1, forward, batch, makes: "));
  const auto c = train("dit_text", {"lr_schedule.lr=0.5"}, true);
  const auto rates = compare(a.events, c.events);
  REQUIRE(rates.first.size() == 1);
  CHECK(rates.first.front().key.pass == Pass::update);
  CHECK(rates.first.front().key.op == "updates");
  CHECK(rates.first.front().key.step == 1);
}

}  // namespace
}  // namespace ditto::diff
