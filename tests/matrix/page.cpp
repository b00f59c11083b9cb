#include "tests/matrix/page.h"

#include <algorithm>
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

constexpr const char* kOneNumberPage = R"(
## One number

Under `run.numerics = "one"` (docs/parallelism.md): "yes" where a training of two steps on the layout has, bit for bit, the
losses, norms, validation, gradients, weights, average and states of one rank that runs each step's samples as a single
micro-batch. Models are of width 48, leaves of 8 tokens.

)";

// A row for each layout, a column for each model.
std::string one_number(const std::vector<Case>& cases, std::map<size_t, Outcome>& outcomes) {
  std::vector<std::string> models, layouts;
  std::map<std::string, std::map<std::string, std::string>> cells;
  std::string refusals;
  const auto note = [](std::vector<std::string>& list, const std::string& text) {
    if (std::find(list.begin(), list.end(), text) == list.end()) list.push_back(text);
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto& one = cases[i];
    if (!one.one_number) continue;
    const auto outcome = outcomes.count(i) ? outcomes[i] : Outcome{false, "the ranks ended early"};
    note(models, one.model), note(layouts, one.layout);
    auto& cell = cells[one.layout][one.model];
    cell = !outcome.ok ? "**no**: " + outcome.text : one.refused.empty() ? "yes" : "refused";
    if (cell == "refused") refusals += "- `" + one.layout + "`, " + one.model + ": " + outcome.text.substr(9) + "\n";
  }
  if (models.empty()) return "";
  std::string head = "| Layout |", line = "|---|", rows;
  for (const auto& model : models) head += " " + model + " |", line += "---|";
  for (const auto& layout : layouts) {
    rows += "| `" + layout + "` |";
    for (const auto& model : models) rows += " " + cells[layout][model] + " |";
    rows += "\n";
  }
  if (!refusals.empty()) refusals = "\nRefused, in these words:\n\n" + refusals;
  return kOneNumberPage + head + "\n" + line + "\n" + rows + refusals;
}

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
    if (cases[i].one_number) continue;
    const auto kind = kind_of(cases[i]);
    if (!tables.count(kind)) order.push_back(kind);
    const auto outcome = by_index.count(i) ? by_index[i] : Outcome{false, "the ranks ended early"};
    tables[kind] += "| `" + (cases[i].layout.empty() ? "one rank" : cases[i].layout) + "` | " +
                    (outcome.ok ? "" : "**no**: ") + outcome.text + " |\n";
  }
  std::string page = kPreface + one_number(cases, by_index);
  for (const auto& kind : order)
    page += "\n## " + kind + "\n\n| Layout | Largest differences |\n|---|---|\n" + tables[kind];
  return page;
}

}  // namespace ditto::matrix
