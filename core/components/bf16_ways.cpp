#include "core/components/bf16_ways.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/components/bf16_rates.h"
#include "core/components/components.h"
#include "core/config/numerics.h"
#include "core/formats/text/toml.h"

namespace ditto {

namespace {

// Of the recipe's kernel plugins, with their own scores.
struct KernelsAndWays {
  KernelsAndWays(Recipe recipe, Registry& registry) {
    recipe.run.bf16_in_fp32 = {kMeasured};
    Components components(recipe, registry);
    rows = components.kernel_rows();
    added = components.added_ops();
    ways = find_ways(rows, added);
  }
  std::vector<std::string> by_scores() const {
    std::vector<std::string> ops;
    for (const auto& one : ways)
      if (one.fp32_by_scores) ops.push_back(one.op);
    return ops;
  }
  std::vector<std::string> by_rates() const {
    const RatesFile file;
    auto rates = file.read();
    bool is_new = false;
    for (const auto& one : ways)
      if (!is_faster_in_fp32(rates, one)) measure(rates, one, rows, added), is_new = true;
    if (is_new) file.write(rates);
    std::vector<std::string> ops;
    for (const auto& one : ways)
      if (is_faster_in_fp32(rates, one).value_or(one.fp32_by_scores)) ops.push_back(one.op);
    return ops;
  }
  std::vector<KernelRow> rows;
  std::vector<Op> added;
  std::vector<Ways> ways;
};

}  // namespace

void measure_ways(Recipe& recipe, Registry& registry, const Group& world) {
  std::string found;
  if (world.rank() == 0) found = fmt::format("{}", fmt::join(KernelsAndWays(recipe, registry).by_rates(), " "));
  found = world.all_gather_text(found).at(0);
  std::vector<std::string> ops;
  for (size_t at = 0, end; at < found.size(); at = end + 1) {
    end = std::min(found.find(' ', at), found.size());
    ops.push_back(found.substr(at, end - at));
  }
  recipe.resolve_bf16_in_fp32(ops);
}

void keep_ways(Recipe& recipe, Registry& registry, const std::string& saved_toml) {
  if (!recipe.bf16_was_measured) return;
  const KernelsAndWays kernels(recipe, registry);
  const auto saved = formats::parse_toml(saved_toml, "the checkpoint's recipe");
  const auto* noted = saved.find_path("run.bf16_in_fp32");
  const auto* list = noted ? noted->as<formats::Array>() : nullptr;
  if (!list) return recipe.resolve_bf16_in_fp32(kernels.by_scores());
  std::vector<std::string> ops;
  for (const auto& one : *list) {
    const auto* op = one.as<std::string>();
    if (op && *op == kMeasured) return;  // nothing was computed in bf16 then
    if (op && std::any_of(kernels.ways.begin(), kernels.ways.end(), [&](const auto& way) { return way.op == *op; }))
      ops.push_back(*op);
  }
  recipe.resolve_bf16_in_fp32(ops);
}

}  // namespace ditto
