// Claim (plugins): The contract tests notice what they are there for: a plugin that breaks a promise fails the check
// of it.
#include <doctest/doctest.h>

#include <ditto/testing/checks.h>

#include "tests/support/files.h"

using ditto::testing::OptionValues;
using ditto::testing::Report;

namespace {

std::string library(const std::string& name) {
  return ditto::test::build_folder() / ("tests/fixture_plugins/" + name + ".so");
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
    return ditto::testing::check_model(library("faulty_model"), ditto::testing::model_needs({3, 4, 4}, 3, 5),
                                       fault(name));
  };
  const Report right = check("none");
  CHECK_MESSAGE(right.passed(), right.failures());
  const std::map<std::string, std::string> faults{
      {"unused parameter", "every parameter has a gradient"},
      {"no unit", "every parameter belongs to one unit"},
      {"empty block", "every parameter belongs to one unit"},
      {"wrong unit", "a unit uses its own parameters alone: unit condition uses stray."},
      {"constant in tokens", "a later stage of a pipeline goes on from what it is sent: tokens() sets the constant"},
      {"promotes", "nothing is promoted to fp64: in Float tokens leaves \"x\" in double"},
      {"mixes samples", "a sample alone gives what it gives in a batch"},
      {"writes to its input", "a block is a pure function"},
      {"mixes tokens", "blocks mix tokens through ctx.attention alone"},
      {"places by index", "tokens that others go around keep their places"},
      {"random", "two runs give the same bits"},
      {"wrong gradient", "gradients are those of finite differences"},
      {"wrong shape", "the prediction is"},
      {"drops all conditions", "without_condition changes conditions alone"},
      {"drops the time", "without_condition changes conditions alone"},
      {"drops nothing", "without condition, all conditions are equal"},
      {"other features", "a block's features are as makes() says"},
      {"hands out what is not there", "what it hands out of the stream is as makes() says"},
      {"asks for numbers", "its forward can be counted on shapes alone"},
      {"forgets a tensor", "checkpoint format \"other\" covers every parameter"},
  };
  for (const auto& [name, promise] : faults) {
    CAPTURE(name);
    breaks(check(name), promise);
  }
}

TEST_CASE("what a model throws, wherever it is asked, is a finding, and ends no program") {
  for (const std::string fault : {"throws in token_local", "throws in takes", "throws in makes", "throws in depth",
                                  "throws in foreign_formats", "throws a number in foreign_formats"}) {
    CAPTURE(fault);
    const auto report = ditto::testing::check_model(library("faulty_model"),
                                                    ditto::testing::model_needs({3, 4, 4}, 3, 5), ::fault(fault));
    CHECK_FALSE(report.passed());
    CHECK(report.failures().find(fault.starts_with("throws a")
                                     ? "threw what is no std::exception"
                                     : "threw: asked for " + fault.substr(10)) != std::string::npos);
  }
}

TEST_CASE("an objective that breaks a promise fails the check of that promise") {
  const auto check = [](const std::string& name) {
    return ditto::testing::check_objective(library("faulty_objective"), fault(name));
  };
  const Report right = check("none");
  CHECK_MESSAGE(right.passed(), right.failures());
  const std::map<std::string, std::string> faults{
      {"unit of the model", "its parameters are of Unit::objective"},
      {"unused parameter", "its parameters are of Unit::objective, and each has a gradient"},
      {"draws by row", "what is drawn for a sample depends on its id alone"},
      {"random", "two preparations give the same bits"},
      {"ignores time_u", "evaluation takes its times from time_u"},
      {"drops in evaluation", "evaluation takes its times from time_u, and drops nothing"},
      {"makes x", "prepare adds x_t"},
      {"forgets the time", "prepare adds x_t"},
      {"makes less than it says", "prepare adds x_t"},
      {"fewer samples", "prepare adds x_t"},
      {"samples twice", "prepare adds x_t"},
      {"fewer rows", "prepare adds x_t"},
      {"a whole tensor", "prepare adds x_t"},
      {"fewer weights", "prepare adds x_t"},
      {"other order", "prepare adds x_t"},
      {"a mean", "losses are finite, [B], and have a gradient"},
      {"losses of half", "losses are finite, [B], and have a gradient"},
      {"preconditions itself", "losses are least at the schedule's target: with a preconditioned schedule"},
      {"one loss for all", "a sample's losses are its own"},
      {"no gradient", "losses are finite, [B], and have a gradient"},
      {"measures of half", "what it measures is finite, [B], and a sample's own"},
      {"one measure for all", "what it measures is finite, [B], and a sample's own"},
  };
  for (const auto& [name, promise] : faults) {
    CAPTURE(name);
    breaks(check(name), promise);
  }
}

TEST_CASE("a strategy that breaks a promise fails the check of that promise") {
  const auto check = [](const std::string& axis, const std::string& name) {
    return ditto::testing::check_parallel(library("faulty_parallel"), {{"serves", axis}, {"fault", name}});
  };
  for (const std::string axis : {"replicate", "context"}) {
    const Report right = check(axis, "none");
    CHECK_MESSAGE(right.passed(), right.failures());
  }
  const std::string gradients = "gradients are one rank's, for any number of micro-batches (2 ranks)";
  for (const std::string name : {"sums nothing", "mean"}) {
    CAPTURE(name);
    breaks(check("replicate", name), gradients);
  }
  // The host has taken up every accumulation's gradients before, where it keeps their order.
  breaks(check("replicate", "sums unsaid"), "so they are where sums are in any order (2 ranks)");
  breaks(check("context", "ignores masks"), "the prediction is one rank's, on every rank (2 ranks)");
  breaks(check("context", "gathers nothing"), gradients);
  breaks(check("context", "joins nothing"), "the prediction is one rank's, on every rank (2 ranks)");
}

TEST_CASE("an option that is declared twice, or whose default is not allowed, is the plugin's mistake, and said") {
  const auto options = [](auto read) {
    ditto::OptionReader reader(ditto::OptionMap{"model", "run.toml:3:1", {}});
    int64_t depth = 0;
    read(reader, depth);
  };
  CHECK_THROWS_WITH_AS(
      options([](auto& option, int64_t& depth) {
        option("depth", depth, "blocks");
        option("depth", depth, "blocks");
      }),
      "model: the option \"depth\" is declared twice; the plugin's Options::read is to declare each name "
      "once",
      ditto::Error);
  CHECK_THROWS_WITH_AS(
      options([](auto& option, int64_t& depth) { option("depth", depth, "blocks").at_least(1); }),
      "model: the default of the option \"depth\" is 0, which it does not allow; expected at least 1; the "
      "plugin's Options is to hold such a default",
      ditto::Error);
  // Where the recipe gives something, that may be what the default does not go with.
  ditto::OptionReader reader(ditto::OptionMap{"model", "run.toml:3:1", {{"experts", {int64_t{1}, "run.toml:4:11"}}}});
  int64_t experts = 4, top_k = 2;
  reader("experts", experts, "how many").at_least(1);
  CHECK_THROWS_WITH_AS(reader("top_k", top_k, "of them").between(1, experts),
                       "run.toml:3:1: model.top_k is 2 by default; expected 1 to 1", ditto::Error);
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
      {"leaves average", "clipping, average and copies are part of an update"},
      {"counts nothing without parameters", "without parameters it counts its updates all the same"},
      {"moves when skipped", "an update is clipped, or skipped, as tensors say"},
      {"exact norm of slices", "exact updates are the others up to rounding, and the same for slices"},
  };
  for (const auto& [name, promise] : faults) {
    CAPTURE(name);
    breaks(check(name), promise);
  }
}

TEST_CASE("a source that tells of other shapes than it reads fails the check of that") {
  const auto check = [](const std::string& name) {
    return ditto::testing::check_source(library("faulty_source"), fault(name), ".");
  };
  const Report right = check("none");
  CHECK_MESSAGE(right.passed(), right.failures());
  for (const std::string name : {"tells another size", "tells of what is not there"}) {
    CAPTURE(name);
    breaks(check(name), "info() tells the shapes that samples have");
  }
}

TEST_CASE("a source whose fingerprint does not see a file fails the check of that") {
  const ditto::test::TemporaryFolder folder;
  for (int i = 0; i < 70; ++i)
    ditto::test::write_text(folder / (std::to_string(i) + ".bin"), std::string(static_cast<size_t>(200 + i), 'a'));
  ditto::test::write_text(folder / "README", "not one of its files");
  const auto check = [&](const std::string& name) {
    return ditto::testing::check_source_files(library("faulty_files"), fault(name), folder.path().string());
  };
  const Report right = check("none");
  CHECK_MESSAGE(right.passed(), right.failures());
  const std::map<std::string, std::string> faults{
      {"every third", "the fingerprint sees of each file its last bytes: not of 46 of 70"},
      {"no sizes", "the fingerprint sees of each file its size: not of 70"},
      {"no heads", "the fingerprint sees of each file its first bytes"},
      {"no tails", "the fingerprint sees of each file its last bytes"}};
  for (const auto& [name, promise] : faults) {
    CAPTURE(name);
    breaks(check(name), promise);
  }
  for (int i = 20; i < 70; ++i) std::filesystem::remove(folder / (std::to_string(i) + ".bin"));
  breaks(check("none"), "it opens a copy of its folder, where it has many files: of 21 files 20 make a difference");
}

TEST_CASE("a source that tells nothing of its samples is not said to keep that promise") {
  const auto report = ditto::testing::check_source(library("faulty_source"), fault("tells nothing"), ".");
  CHECK(report.passed());
  CHECK(report.text().find("skip  training part: info() tells the shapes that samples have: it tells nothing") !=
        std::string::npos);
}

TEST_CASE("an encoder that breaks a promise fails the check of that promise") {
  const ditto::TensorSpecs data{{"caption", at::kByte, {-1}, "UTF-8"}};
  const auto check = [&](const std::string& mistake) {
    return ditto::testing::check_encoder(library("mistaken_encoder"), data, {{"mistake", mistake}});
  };
  const Report right = check("none");
  CHECK_MESSAGE(right.passed(), right.failures());
  const std::string alike = "ranks that share its parameters encode alike: ",
                    alone = "a sample alone is encoded as in a batch",
                    split = "it looks like a missing or wrong Split: blocks.0.";
  // Some of those that `ditto plugins try` is tried with (tests/integration/plugins/plugins_try.py --slow), and what it
  // leaves out.
  const std::map<std::string, std::pair<std::string, std::string>> mistakes{
      {"qkv by columns", {alike + "tensor 2", split + "qkv has Split::columns({96})"}},
      {"outside of its unit", {alike + "fsdp 2", ""}},
      {"sees the padding", {alone, "of sample 1 by itself \"text\" differs"}},
      {"shows the padding", {alone, "shows 6 places of a text that has 3"}},
      {"sees its neighbours", {alone, "of sample 0 by itself \"text\" differs"}},
      {"noise by generator", {"two runs give the same bits", ""}},
      {"draws what is kept",
       {"what is kept of a sample is what caches() says", "of other ids, with another seed \"text\" differs"}},
      {"reads the text again", {"it makes what makes() says", "there is no tensor \"caption\""}},
      {"no lengths", {"lengths are said of every text", "of \"text\" they are not"}},
      {"other lengths", {"lengths are said of every text", "of sample 1 of \"text\" it is 6, and its mask shows 3"}},
      {"no fingerprint", {"equal encoders have equal fingerprints", ""}},
  };
  for (const auto& [mistake, said] : mistakes) {
    CAPTURE(mistake);
    const auto report = check(mistake);
    breaks(report, said.first);
    CHECK(report.failures().find(said.second) != std::string::npos);
  }
  for (const std::string name : {"bytes_text", "shifted"}) {
    CAPTURE(name);
    const auto of = name == "shifted" ? ditto::TensorSpecs{{"image", at::kFloat, {3, 8, 8}, "-1 … 1"}} : data;
    const Report report = ditto::testing::check_encoder(library(name), of);
    CHECK_MESSAGE(report.passed(), report.failures());
  }
  const ditto::TensorSpecs pictures{{"image", at::kFloat, {3, 8, 8}, "-1 … 1"}};
  breaks(ditto::testing::check_encoder(library("half_decoded"), pictures),
         "decode gives pictures, or parts of them, of the size that decoded() says: decoded() says [3, 4, 4]");
  const Report drawn = ditto::testing::check_encoder(library("bytes_text"), data,
                                                     {{"noise", 0.5}, {"pooled", true}, {"name", std::string("t")}});
  CHECK_MESSAGE(drawn.passed(), drawn.failures());
}

TEST_CASE("a cache that breaks a promise fails the check of that promise") {
  const auto check = [](const std::string& name) {
    return ditto::testing::check_cache(library("faulty_cache"), fault(name));
  };
  const Report right = check("none");
  CHECK_MESSAGE(right.passed(), right.failures());
  const std::map<std::string, std::string> faults{
      {"remembers another's", "all that it remembers of a sample is its sum"},
      {"skips what is not a number", "a change that is not finite is computed"},
      {"sums on", "the sum stays finite"},
  };
  for (const auto& [name, promise] : faults) {
    CAPTURE(name);
    breaks(check(name), promise);
  }
}

TEST_CASE("a guidance that breaks a promise fails the check of that promise") {
  const auto check = [](const std::string& name) {
    return ditto::testing::check_guidance(library("faulty_guidance"), fault(name));
  };
  const Report right = check("none");
  CHECK_MESSAGE(right.passed(), right.failures());
  const std::map<std::string, std::string> faults{
      {"forgets the variance", "the result is finite, and shaped as an evaluation"},
      {"in double", "the result is finite, and shaped as an evaluation"},
      {"divides by zero", "the result is finite, and shaped as an evaluation"},
      {"mixes samples", "a sample's numbers depend on its own row alone"},
      {"random", "two calls give the same bits"},
      {"writes to its input", "what it is given is kept"},
      {"unsaid network", "a network that it evaluates was asked for when it was made"},
      {"unsaid negative", "uses_negative says whether it evaluates without conditions: it does"},
      {"no negative", "uses_negative says whether it evaluates without conditions: it never does"},
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
  breaks(check("copies"), "gated_residual/faulty copies nothing that it does not tell of");
  const Report other = check("other bits");
  breaks(other, "gated_residual/exact_b has the bits of exact_a");
  CHECK(other.failures().find("agrees with the reference") == std::string::npos);
}

TEST_CASE("a kernel that takes a tensor for contiguous is named, with the input, whichever it is") {
  const auto check = [](const std::string& name, int64_t which) {
    return ditto::testing::check_kernels(library("faulty_kernels"), {{"fault", name}, {"which", which}});
  };
  // Of x, gate and y; and x, shift and scale.
  for (const int64_t which : {0, 1, 2}) {
    CAPTURE(which);
    const auto report = check("takes for contiguous", which);
    const auto input = "input " + std::to_string(which);
    breaks(report, "gated_residual/faulty agrees with the reference");
    breaks(report, "norm_modulate/faulty agrees with the reference");
    CHECK(report.failures().find(input) != std::string::npos);
  }
  for (const int64_t which : {1, 2}) {
    CAPTURE(which);
    breaks(check("takes for contiguous, backward", which), "gated_residual/faulty agrees with the reference");
  }
  // One that asks it of x alone, and computes with the gate so.
  const auto report = check("contiguous x", 0);
  breaks(report, "gated_residual/faulty agrees with the reference");
  CHECK(report.failures().find("input 1 a slice of something wider") != std::string::npos);
}

TEST_CASE("a kernel that says it is exact, and is not, is named by what its bits depend on") {
  const auto check = [](const std::string& name) {
    return ditto::testing::check_kernels(library("faulty_exact"), fault(name));
  };
  const Report right = check("none");
  CHECK_MESSAGE(right.passed(), right.failures());
  const std::map<std::string, std::string> faults{
      {"threads", "by 3 threads, tensor 0"},
      {"batch", "a batch of 1 against 3: output 0"},
      {"samples", "a batch of 1 against 3: the gradient of input 1"},
      {"leaves", "leaves of tokens by themselves: the gradient of input 1"},
      {"inputs", "leaves of in_leaves: output 0"},
      {"outputs", "leaves of out_leaves: the gradient of input 0"},
      {"strides", "with tensors that are"},
  };
  for (const auto& [name, what] : faults) {
    CAPTURE(name);
    const auto report = check(name);
    breaks(report, "linear/faulty is exact");
    CHECK(report.failures().find(what) != std::string::npos);
    CHECK(report.failures().find("agrees with the reference") == std::string::npos);
  }
}

TEST_CASE("a model that calls more than single operations beside the op table is told which") {
  const auto calls = [](const std::string& name) {
    std::string all;
    for (const auto& one : ditto::testing::inexact_calls(library("faulty_model"),
                                                         ditto::testing::model_needs({3, 4, 4}, 3, 5), fault(name)))
      all += one + " ";
    return all;
  };
  CHECK(calls("none") == "aten::sum ");  // its condition is added to all tokens, which sums the gradient over them
  CHECK(calls("mixes samples").find("aten::mean ") != std::string::npos);
  CHECK(calls("scatters") == "aten::scatter aten::sum ");  // as the guard of a run's first step has it: one list
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
