#include "core/components/bf16_rows.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ditto/error.h>

#include "core/config/numerics.h"

namespace ditto {

namespace {

constexpr int kAboveAll = 1000;  // of scores

bool holds_op(const std::vector<std::string>& ops, const std::string& op) {
  return std::find(ops.begin(), ops.end(), op) != ops.end();
}

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

}  // namespace ditto
