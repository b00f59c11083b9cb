#include "tests/matrix/page.h"

#include <map>

namespace ditto::matrix {

namespace {

constexpr const char* kPreface = R"(# Every layout against one rank

Written by `build/release/tests/ditto_matrix --table all --write docs/parallelism_matrix.md` (a part of
`./dev test --all`). Each line is a training of a tiny model (4 blocks of width 32 with 4 heads, 64 tokens, weights in
which no tensor is zero, AdamW, clipped gradients, 8 samples a step in 4 micro-batches, or as many as there are data
ranks) on a layout of ranks, compared with one rank that runs the same micro-batches.

The figures are the largest differences over all steps and tensors: of losses and gradient norms; of a validation on 5
held-out samples with the average, in micro-batches of 2; of the first step's gradients, and the final weights, their
average and the optimizer's state. The bias of keys that are neither normalised nor rotated has a true gradient of zero:
what is computed is rounding, so it is left out of gradients, weights, average and state.

In fp64 figures are relative (of a tensor, element by element to its largest entry), and at most 1e-12; with adamw8bit
1e-11, because an update whose second moment has the code 0 is divided by eps alone, which makes rounding larger. In fp32
and bf16 they are how many times as far a layout is from one rank as one rank is from itself in fp64, or fp32 (2-norms of
tensors; the largest relative difference of a run's losses): at most 3. "Bits": no bit may differ, over 20 steps in fp32.
)";

std::string kind_of(const Case& one) {
  return one.model + ", " + (one.bits ? "identical bits, fp32" : one.precision) +
         (one.micro_batches > 0 ? ", " + std::to_string(one.micro_batches) + " micro-batches" : "") +
         (one.real_init ? ", as training starts" : "") + (one.packed ? ", packed" : "") +
         (one.optimizer == "adamw" ? "" : ", " + one.optimizer);
}

}  // namespace

std::string as_page(const std::vector<Case>& cases, const std::vector<std::pair<size_t, Outcome>>& outcomes) {
  std::map<size_t, Outcome> by_index(outcomes.begin(), outcomes.end());
  std::map<std::string, std::string> tables;
  std::vector<std::string> order;
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto kind = kind_of(cases[i]);
    if (!tables.count(kind)) order.push_back(kind);
    const auto outcome = by_index.count(i) ? by_index[i] : Outcome{false, "the ranks ended early"};
    tables[kind] += "| `" + (cases[i].layout.empty() ? "one rank" : cases[i].layout) + "` | " +
                    (outcome.ok ? "" : "**no**: ") + outcome.text + " |\n";
  }
  std::string page = kPreface;
  for (const auto& kind : order)
    page += "\n## " + kind + "\n\n| Layout | Largest differences |\n|---|---|\n" + tables[kind];
  return page;
}

}  // namespace ditto::matrix
