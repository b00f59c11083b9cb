#include "core/components/bf16_ways.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ditto/error.h>

#include "core/components/bf16_rates.h"
#include "core/components/components.h"
#include "core/config/numerics.h"
#include "core/formats/text/toml.h"

namespace ditto {

namespace {

constexpr int kAboveAll = 1000;  // of scores

bool holds_op(const std::vector<std::string>& ops, const std::string& op) {
  return std::find(ops.begin(), ops.end(), op) != ops.end();
}

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

bool is_in_fp32(const KernelRow& row) { return row.variant.starts_with("in_fp32"); }

void choose_ways(std::vector<KernelRow>& rows, const Recipe& recipe) {
  if (measures_bf16(recipe)) return;
  for (auto& row : rows) {
    if (!is_in_fp32(row)) continue;
    const bool taken = holds_op(recipe.run.bf16_in_fp32, row.op);
    row.score = [of = row.score, taken](const OpCall& call) {
      const int score = of(call);
      return score == 0 ? 0 : taken ? kAboveAll + score : 1;
    };
  }
}

void require_ways(const std::vector<KernelRow>& rows, const Recipe& recipe) {
  if (measures_bf16(recipe)) return;
  std::set<std::string> known;
  for (const auto& row : rows)
    if (is_in_fp32(row)) known.insert(row.op);
  for (const auto& op : recipe.run.bf16_in_fp32) {
    if (known.count(op)) continue;
    const std::vector<std::string> all(known.begin(), known.end());
    const auto near = nearest(op, all);
    throw Error(ErrorKind::config, "run.bf16_in_fp32",
                "names \"" + op + "\", and no kernel of the run computes that in fp32 where it is asked for in bf16",
                !near.empty() ? "did you mean \"" + near + "\"?"
                : all.empty() ? "leave it out, or add \"exact\" to plugins.kernels"
                              : fmt::format("expected some of {}", fmt::join(all, ", ")));
  }
}

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
