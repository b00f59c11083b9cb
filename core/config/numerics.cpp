#include "core/config/numerics.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include <ditto/error.h>

namespace ditto {

std::vector<std::string> kernel_sets(const Recipe& recipe) {
  auto sets = recipe.plugins.kernels;
  if (is_one_number(recipe) && std::find(sets.begin(), sets.end(), kExactKernels) == sets.end())
    sets.emplace_back(kExactKernels);
  return sets;
}

void refuse_numerics(const std::string& found, const std::string& remedy) {
  throw Error(ErrorKind::config, "run.numerics", found, remedy);
}

namespace {

[[noreturn]] void refuse(const std::string& option, const std::string& value, const std::string& why,
                         const std::string& instead) {
  refuse_numerics("\"one\" does not go with " + option + " = " + value + ": " + why,
                  "set " + instead + ", or run.numerics = \"fast\"");
}

std::string quoted(const std::string& text) { return to_text(OptionValue(text)); }

// bf16: sums of fp32, of numbers that are rounded before they are multiplied.
bool has_one_number(const std::string& precision) { return precision == "fp32" || precision == "bf16"; }

void check_run(const RunOptions& run) {
  const auto fp32 = "its sums are defined in fp32 on the CPU";
  if (!has_one_number(run.precision))
    refuse("run.precision", quoted(run.precision), fp32, "run.precision = \"fp32\" or \"bf16\"");
  if (run.device != "cpu") refuse("run.device", quoted(run.device), fp32, "run.device = \"cpu\"");
  if (!run.deterministic)
    refuse("run.deterministic", "false", "gradients are then summed in the library's order",
           "run.deterministic = true");
}

const OptionValue* given(const ParallelOptions& parallel, const char* key) {
  const auto at = parallel.given.find(key);
  return at == parallel.given.end() ? nullptr : &at->second.value;
}

void check_layout(const ParallelOptions& parallel) {
  if (!std::has_single_bit(static_cast<std::uint64_t>(parallel.expert)))
    refuse("parallel.expert", std::to_string(parallel.expert),
           "the samples of so many micro-batches, whose rows an expert sees at once, are no node of the tree over a "
           "step's samples",
           "parallel.expert to a power of two");
  const auto* conditioning = given(parallel, "pipeline_conditioning");
  if (const auto* how = conditioning ? std::get_if<std::string>(conditioning) : nullptr; how && *how == "replicated")
    refuse("parallel.pipeline_conditioning", quoted(*how), "each rank takes another part of a sum back through it",
           "parallel.pipeline_conditioning = \"carried\"");
}

}  // namespace

bool shares_tokens(const ParallelOptions& parallel) {
  const auto* sequence = given(parallel, "sequence");
  const auto* regions = sequence ? std::get_if<bool>(sequence) : nullptr;
  return parallel.context > 1 || (parallel.tensor > 1 && regions && *regions);
}

void check_audit(const Recipe& recipe) {
  if (recipe.run.audit == 0) return;
  const auto cannot = [](const std::string& with, const std::string& why, const std::string& instead) {
    throw Error(ErrorKind::config, "run.audit", "does not go with " + with + ": " + why,
                "set " + instead + ", or run.audit = 0");
  };
  if (!recipe.run.deterministic)
    cannot("run.deterministic = false", "what is computed again need not have the same bits",
           "run.deterministic = true");
  if (recipe.parallel.serves("expert", recipe.parallel.expert))
    cannot("parallel.expert = " + std::to_string(recipe.parallel.expert),
           "experts sum over the micro-batches of all ranks of this axis, in another order where these change places",
           "parallel.expert = 1");
}

std::string idle_bf16(const Recipe& recipe) {
  if (measures_bf16(recipe) || recipe.run.bf16_in_fp32.empty()) return {};
  const auto in_bf16 = [](const auto& sections) {
    return std::any_of(sections.begin(), sections.end(), [](const auto& one) { return one.precision == "bf16"; });
  };
  const auto idle = [](const std::string& why) {
    return "run.bf16_in_fp32 names ops, and " + why + ": it changes nothing";
  };
  if (is_one_number(recipe)) return idle("run.numerics = \"one\" has kernels of its own");
  if (recipe.run.device != "cpu") return idle("run.device is " + quoted(recipe.run.device));
  if (recipe.run.precision == "bf16" || in_bf16(recipe.encoders) || in_bf16(recipe.networks)) return {};
  return idle("nothing is computed in bf16");
}

void check_numerics(const Recipe& recipe) {
  if (!is_one_number(recipe)) return;
  check_run(recipe.run);
  check_layout(recipe.parallel);
  for (const auto* sections : {&recipe.encoders, &recipe.networks})
    for (const auto& one : *sections)
      if (!one.precision.empty() && !has_one_number(one.precision))
        refuse(one.section() + ".precision", quoted(one.precision), "its sums are defined in fp32",
               one.section() + ".precision = \"fp32\" or \"bf16\"");
}

Alone each_alone(const Recipe& recipe, const Source& data) {
  const auto specs = data.makes();
  const bool differ = recipe.batch.sizes.size() != 1 && std::any_of(specs.begin(), specs.end(), [](const auto& spec) {
                        return std::find(spec.shape.begin(), spec.shape.end(), kOwnSide) != spec.shape.end();
                      });
  if (differ || recipe.batch.plan != BatchOptions().plan) return Alone::sizes_differ;
  return shares_tokens(recipe.parallel) ? Alone::tokens_are_shared : Alone::no;
}

}  // namespace ditto
