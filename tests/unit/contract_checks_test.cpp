// The contract tests notice what they are there for: a plugin that breaks a promise fails the check of it.
#include <doctest/doctest.h>

#include <ditto/testing/checks.h>

#include "tests/support/files.h"

using ditto::testing::OptionValues;
using ditto::testing::Report;

namespace {

std::string library(const std::string& name) {
  return ditto::test::build_folder() / ("tests/broken_plugins/" + name + ".so");
}
OptionValues fault(const std::string& name) { return {{"fault", name}}; }

// The named promise is among the broken ones.
void breaks(const Report& report, const std::string& promise) {
  const std::string failures = report.failures();
  CAPTURE(report.text());
  CHECK_FALSE(report.passed());
  CHECK(failures.find(": " + promise) != std::string::npos);
}

}  // namespace

TEST_CASE("a model that breaks a promise fails the check of that promise") {
  const auto check = [](const std::string& name) {
    return ditto::testing::check_model(library("faulty_model"), {{3, 4, 4}, 3, 5, 0}, fault(name));
  };
  const Report right = check("none");
  CHECK_MESSAGE(right.passed(), right.failures());
  const std::map<std::string, std::string> faults{
      {"unused parameter", "every parameter has a gradient"},
      {"no unit", "every parameter belongs to one unit"},
      {"empty block", "every parameter belongs to one unit"},
      {"mixes samples", "a sample alone gives what it gives in a batch"},
      {"writes to its input", "a block is a pure function"},
      {"mixes tokens", "blocks mix tokens through ctx.attention alone"},
      {"random", "two runs give the same bits"},
      {"wrong gradient", "gradients are those of finite differences"},
      {"wrong shape", "the prediction is"},
      {"drops all conditions", "without_condition changes conditions alone"},
      {"drops the time", "without_condition changes conditions alone"},
      {"drops nothing", "without condition, all conditions are equal"},
      {"no flops", "flops is positive"},
      {"forgets a tensor", "checkpoint format \"other\" covers every parameter"},
  };
  for (const auto& [name, promise] : faults) {
    CAPTURE(name);
    breaks(check(name), promise);
  }
}

TEST_CASE("an optimizer that breaks a promise fails the check of that promise") {
  const auto check = [](const std::string& name) {
    return ditto::testing::check_optimizer(library("faulty_optimizer"), fault(name));
  };
  const Report right = check("none");
  CHECK_MESSAGE(right.passed(), right.failures());
  const std::map<std::string, std::string> faults{
      {"moves without gradient", "a parameter without a gradient stays"},
      {"stands still", "a step moves every parameter"},
      {"random", "two runs give the same bits"},
      {"whole norm", "slices of a parameter move as the whole does"},
      {"climbs", "50 steps lower a sum of squares"},
      {"hides state", "a run goes on bit for bit"},
      {"forgets counters", "a run goes on bit for bit"},
      {"flat state", "state tensors lie along the parameters"},
  };
  for (const auto& [name, promise] : faults) {
    CAPTURE(name);
    breaks(check(name), promise);
  }
}

TEST_CASE("a kernel that is wrong is named") {
  const auto check = [](const std::string& name) {
    return ditto::testing::check_kernels(library("faulty_kernels"), fault(name));
  };
  const Report right = check("none");
  CHECK_MESSAGE(right.passed(), right.failures());
  for (const std::string name : {"forward", "backward", "never", "ignores packs"}) {
    CAPTURE(name);
    breaks(check(name), "gated_residual/faulty agrees with the reference");
  }
}

TEST_CASE("a library of another kind is refused by the contract tests") {
  const Report report = ditto::testing::check_sampler(library("good"));
  breaks(report, "it can be made");
  CHECK(report.failures().find("is a kernels; expected a sampler") != std::string::npos);
}

TEST_CASE("a report in which nothing was checked has not passed") {
  Report report("nothing");
  report.skip("something", "there was no time");
  CHECK_FALSE(report.passed());
}
