#include "core/verify/replay.h"

#include <fmt/format.h>

#include <ditto/error.h>

#include "core/checkpoint/disk.h"
#include "core/receipts/checkpoint_receipt.h"

namespace ditto {

namespace {

using RunFacts = std::map<std::string, std::string>;

std::string fact(const RunFacts& facts, const std::string& name) {
  const auto found = facts.find(name);
  return found == facts.end() ? "(none)" : found->second;
}

// What differs and is told, not refused: it may make other bits, and need not.
bool is_note(const std::string& name) {
  return name.starts_with("plugins.") || name.starts_with("library.") || name == "data" || name == "ditto" ||
         name == "numerics_epoch";
}

// What earlier receipts do not have.
bool is_young(const std::string& name) { return name == "torch_build" || name == "variables"; }

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

// Of checkpoints' steps those with a line.
std::vector<checkpoint::StepFolder> known_checkpoints(const std::string& run, const Receipts& receipts) {
  auto steps = checkpoint::list(run + "/checkpoints").steps;
  std::erase_if(steps, [&](const auto& one) { return !receipts.state(one.step); });
  return steps;
}

}  // namespace

void ReceiptCheck::refuse_other(const Receipt& theirs, const Receipt& beginning) {
  const auto &before = *theirs.begins, &now = *beginning.begins;
  for (const char* name : {"recipe", "numerics"})
    if (fact(before, name) != fact(now, name))
      throw Error(ErrorKind::config, "replay",
                  fmt::format("after step {} the run had another {} than is given now", theirs.step,
                              name == std::string("recipe") ? "recipe, as far as it says what is learned,"
                                                            : "run.numerics, or run.precision under \"one\","),
                  "leave out what changes it, or give by --set what it was then (a checkpoint's recipe.toml says it)");
  RunFacts all = before;
  all.insert(now.begin(), now.end());
  for (const auto& [name, value] : all) {
    if (fact(before, name) == fact(now, name)) continue;
    const auto change = fmt::format("{} was {} in the run, and is {} now", name, fact(before, name), fact(now, name));
    if (!is_note(name) && !(is_young(name) && !before.contains(name)))
      throw Error(
          ErrorKind::config, "replay",
          change + ": with run.numerics = \"fast\" that may make other bits, which would say nothing of the run",
          "replay it as it ran; a run with run.numerics = \"one\" can be replayed on any layout");
    notes_.push_back(change);
  }
}

void ReceiptCheck::begins(const Receipt& beginning) {
  from_ = done_ = beginning.step;
  const auto* theirs = run_.beginning(from_);
  const auto* state = run_.state(from_);
  if (!theirs || !state)
    throw Error(ErrorKind::config, "replay", fmt::format("the receipts have no line of step {}", from_),
                "choose steps that they have");
  refuse_other(*theirs, beginning);
  for (const auto& line : run_.lines)
    if (line.begins && line.step > from_ && line.step < last_step_) refuse_other(line, beginning);
  if (auto parts = different_parts(*state, beginning); !parts.empty()) found_ = {from_, std::move(parts)};
}

bool ReceiptCheck::made(const Receipt& receipt) {
  if (found_) return false;
  done_ = receipt.step;
  const auto* theirs = run_.made(receipt.step);
  auto parts = theirs ? different_parts(*theirs, receipt) : std::vector<std::string>{"no receipt"};
  if (!parts.empty()) found_ = {receipt.step, std::move(parts)};
  return !found_;
}

std::string ReceiptCheck::verdict() const {
  const auto notes = notes_.empty() ? std::string() : " (" + joined(notes_) + ")";
  if (!found_ && done_ < last_step_)
    return fmt::format("steps {} to {} are what their receipts say, and the later ones were not made{}", from_ + 1,
                       done_, notes);
  if (!found_) return fmt::format("the same: steps {} to {} are what their receipts say{}", from_ + 1, done_, notes);
  if (found_->step == from_)
    return fmt::format("what step {} begins with is not what the receipts say: other {}{}", from_ + 1,
                       joined(found_->parts), notes);
  return fmt::format("step {} is not what its receipt says: other {}{}", found_->step, joined(found_->parts), notes);
}

std::string checkpoint_before(const std::string& run, const Receipts& receipts, int64_t step) {
  std::string newest;
  for (const auto& one : known_checkpoints(run, receipts))
    if (one.step <= step) newest = run + "/checkpoints/" + one.name;
  if (newest.empty() && !receipts.lines.empty() && receipts.lines.front().step > 0)
    throw Error(ErrorKind::checkpoint, run + "/checkpoints",
                fmt::format("there is none of step {} or before, and the receipts begin after step {}", step,
                            receipts.lines.front().step),
                "begin with --from at a checkpoint that is kept");
  return newest;
}

Suspects suspects(const std::string& run, const Receipts& receipts) {
  const auto saved = known_checkpoints(run, receipts);
  const auto is_as_said = [&](const checkpoint::StepFolder& one) {
    const auto holds = receipt_of_checkpoint(run + "/checkpoints/" + one.name);
    return different_parts(*receipts.state(one.step), holds).empty();
  };
  // Each by itself: one that was changed after it was saved says nothing of later ones.
  const auto bad = static_cast<size_t>(std::find_if_not(saved.begin(), saved.end(), is_as_said) - saved.begin());
  const auto first = receipts.lines.empty() ? 0 : receipts.lines.front().step;
  if (bad == saved.size()) return {first, receipts.lines.empty() ? 0 : receipts.lines.back().step};
  return {bad > 0 ? saved[bad - 1].step : first, saved[bad].step, saved[bad].step};
}

}  // namespace ditto
