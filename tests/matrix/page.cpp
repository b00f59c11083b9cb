#include "tests/matrix/page.h"

#include <algorithm>
#include <iterator>

#include "tests/matrix/layouts.h"

namespace ditto::matrix {

namespace {

constexpr const char* kPreface = R"(# Every layout against one rank

Written by `build/release/tests/ditto_matrix --table all --write docs/generated/parallelism_matrix.md` (a part of
`./dev test --all`; with `--only`, or `--table models` or `one`, of the tables that were run whole). Each line is a training of
a tiny model (4 blocks of width 32 with 4 heads, 64 tokens, weights in which no tensor is zero, AdamW, clipped gradients, 8
samples a step in 4 micro-batches, or as many as there are data ranks) on a layout of ranks, compared with one rank that runs
the same micro-batches. `mmdit` is in Stable Diffusion 3.5's shape; `flux`, `jit` and `pixart` are of width 48. `unet_sd`,
`imagen_unet` and `imagen_efficient_unet` are UNets over maps of 8 x 8 and 4 x 4 with 32 and 64, or 64 and 128, channels.
`dit_joins` is `dit` with a picture of 8 x 8 beside its 16 x 16 (`model.joins`).

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
Under `run.numerics = "one"` (docs/choosing_a_layout.md): "yes" where a training of two steps on the layout has, bit for bit, the
losses, norms, validation, gradients, weights, average and states of one rank that runs each step's samples as a single
micro-batch. Models are of width 48 (UNets as above), leaves of 8 tokens. What a model refuses is tried on layouts whose ranks all find
it. `kernels.*=exact_plain` has all ops computed by these kernels, of which others are chosen elsewhere.

)";

// Of a page: what comes after the line "## NAME", up to the next one.
std::map<std::string, std::string> sections_of(const std::string& page) {
  std::map<std::string, std::string> sections;
  for (size_t at = page.find("\n## "); at != page.npos;) {
    const auto next = page.find("\n## ", at + 1), line = page.find('\n', at + 1);
    sections[page.substr(at + 4, line - at - 4)] = page.substr(line + 1, next == page.npos ? next : next - line - 1);
    at = next;
  }
  return sections;
}

Outcome outcome_of(const Case& one, const Outcomes& outcomes) {
  const auto found = outcomes.find(title(one));
  return found == outcomes.end() ? Outcome{false, "not run"} : found->second;
}

bool has_all_layouts(const std::string& model) {
  return std::find(std::begin(kModels), std::end(kModels), model) != std::end(kModels);
}

// A row for each layout, a column for each model.
std::string one_number(const std::vector<Case>& cases, const Outcomes& outcomes) {
  std::vector<std::string> models, layouts;
  std::map<std::string, std::map<std::string, std::string>> cells;
  std::string refusals;
  const auto note = [](std::vector<std::string>& list, const std::string& text) {
    if (std::find(list.begin(), list.end(), text) == list.end()) list.push_back(text);
  };
  for (const auto& one : cases) {
    const auto outcome = outcome_of(one, outcomes);
    note(models, one.model), note(layouts, one.layout);
    auto& cell = cells[one.layout][one.model];
    cell = !outcome.ok ? "**no**: " + outcome.text : one.refused.empty() ? "yes" : "refused";
    if (cell == "refused") refusals += "- `" + one.layout + "`, " + one.model + ": " + outcome.text.substr(9) + "\n";
  }
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

std::string differences(const std::vector<Case>& cases, const Outcomes& outcomes) {
  std::string rows;
  for (const auto& one : cases) {
    const auto outcome = outcome_of(one, outcomes);
    rows += "| `" + (one.layout.empty() ? "one rank" : one.layout) + "` | " + (outcome.ok ? "" : "**no**: ") +
            outcome.text + " |\n";
  }
  return "\n| Layout | Largest differences |\n|---|---|\n" + rows;
}

std::string section_of(const Case& one) {
  if (one.one_number) return std::string("One number") + (has_all_layouts(one.model) ? "" : ", more models");
  return one.model + ", " + (one.bits ? "identical bits, fp32" : one.precision) +
         (one.micro_batches > 0 ? ", " + std::to_string(one.micro_batches) + " micro-batches" : "") +
         (one.real_init ? ", as training starts" : "") + (one.packed ? ", packed" : "") +
         (one.layout.starts_with("tread.") ? ", tokens led around blocks" : "") +
         (one.optimizer == "adamw" ? "" : ", " + one.optimizer);
}

}  // namespace

std::string as_page(const std::vector<Case>& cases, const Outcomes& outcomes, const std::string& before) {
  std::map<std::string, std::vector<Case>> sections;
  std::vector<std::string> order;
  for (const auto& one : cases) {
    const auto section = section_of(one);
    if (!sections.count(section)) order.push_back(section);
    sections[section].push_back(one);
  }
  std::stable_partition(order.begin(), order.end(), [](const auto& name) { return name.starts_with("One number"); });
  const auto kept = sections_of(before);
  std::string page = kPreface;
  for (const auto& name : order) {
    const auto& own = sections[name];
    const auto run = std::count_if(own.begin(), own.end(), [&](const Case& one) { return outcomes.count(title(one)); });
    if (run == 0 && !kept.count(name)) continue;
    page += "\n## " + name + "\n";
    if (run < std::ssize(own) && kept.count(name))
      page += kept.at(name);
    else
      page += own.front().one_number ? one_number(own, outcomes) : differences(own, outcomes);
  }
  return page;
}

}  // namespace ditto::matrix
