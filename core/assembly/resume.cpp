#include "core/assembly/resume.h"

#include <algorithm>

#include <fmt/format.h>

#include <ditto/error.h>
#include <ditto/text.h>

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/disk.h"
#include "core/components/strategies.h"
#include "core/config/differences.h"
#include "core/data/shapes.h"

namespace ditto {

namespace {

// Of the strategies of a checkpoint's recipe. One of another Ditto may be none here.
std::vector<std::string> strategies_of(const std::string& saved_toml) {
  try {
    return strategy_ids(Recipe::saved(saved_toml, "the checkpoint's recipe"));
  } catch (const Error&) {
    return {};
  }
}

// As TOML, and of a key that is not there.
constexpr const char *kNumerics = "run.numerics", *kFast = "\"fast\"", *kOne = "\"one\"", *kNone = "(none)",
                     *kTokenLeaf = "run.token_leaf", *kPrecision = "run.precision", *kWays = "run.bf16_in_fp32",
                     *kAuto = "[\"auto\"]";

bool is_one_number(const formats::Table& recipe) {
  const auto* numerics = recipe.find_path(kNumerics);
  return numerics && formats::render_toml_value(*numerics) == kOne;
}

}  // namespace

std::optional<std::string> find_start(const std::string& resume, const std::string& checkpoints, const Group& ranks,
                                      const std::function<void(const std::string&)>& say) {
  if (resume == "never") return {};
  const bool is_auto = resume == "auto";
  auto found = is_auto ? checkpoint::find(checkpoints, ranks) : checkpoint::resolve(resume, ranks);
  for (const auto& line : found.skipped) say("not resumed from " + line);
  if (is_auto && !found.path && !checkpoint::list(checkpoints).steps.empty())
    throw Error(ErrorKind::checkpoint, checkpoints, "holds checkpoints, and none that can be used",
                "bring one back, or start over with --resume never, which sets them aside");
  return found.path;
}

OptionEffects effects_of(const Recipe& now, const std::string& saved_toml, Registry& registry) {
  OptionEffects effects = now.effects();
  for (const auto& id : strategies_of(saved_toml)) {
    try {
      OptionReader reader({"parallel", now.name, {}}, effect_of_options<ParallelStrategy>());
      registry.factory<ParallelStrategy>(id, now.name).declare(reader);
      OptionEffects theirs;
      theirs.add("parallel", reader.declared());
      effects.merge(theirs);
    } catch (const Error&) {  // it is gone: what nobody declares has to be allowed
    }
  }
  return effects;
}

std::vector<std::string> unknown_words(const std::vector<std::string>& allowed, const formats::Table& saved,
                                       const formats::Table& now, const OptionEffects& effects) {
  const auto changes = differences(saved, now);
  std::vector<std::string> unknown;
  for (const auto& word : allowed) {
    const bool is_known = effects.knows(word) || saved.find_path(word) || now.find_path(word) || word == "data.names" ||
                          word == "kernels" || word.starts_with("kernels.") || word.ends_with(".weights");
    if (!is_known && std::none_of(changes.begin(), changes.end(), [&](const auto& change) {
          return change.key == word || change.key.starts_with(word + ".");
        }))
      unknown.push_back(word);
  }
  return unknown;
}

std::vector<std::string> compare_recipes(const formats::Table& saved, const formats::Table& now,
                                         const OptionEffects& effects, const std::vector<std::string>& allowed) {
  std::vector<std::string> lines;
  const bool one_number = is_one_number(saved) && is_one_number(now);
  for (auto change : differences(saved, now)) {
    if (change.key.starts_with("record.")) continue;
    if (change.key == kNumerics && change.before == kNone) change.before = kFast;  // of before there was the option
    if (change.key == kTokenLeaf && change.before == kNone) change.before = std::to_string(RunOptions().token_leaf);
    // What was left to be measured, and before there was the option, is no choice that could have changed.
    if (change.key == kWays && (change.before == kNone || change.before == kAuto || change.after == kAuto)) continue;
    if (change.before == change.after) continue;
    const auto effect = effects.of(change.key);
    std::string line = change.key + ": " + change.before + " -> " + change.after;
    if (one_number && change.key != kPrecision && (effect == Effect::speed || effect == Effect::bits)) {
      lines.push_back(line + " (bit for bit)");
      continue;
    }
    if (effect == Effect::speed) line += " (bit for bit with the same micro-batches, else equal within rounding)";
    if (effect == Effect::bits) line += " (equal within rounding from here on, not bit for bit)";
    const bool is_allowed = std::any_of(allowed.begin(), allowed.end(), [&](const std::string& key) {
      return change.key == key || change.key.starts_with(key + ".");
    });
    if (effect == Effect::learning && !is_allowed)
      throw Error(ErrorKind::config, change.key,
                  "was " + change.before + " in the run to be resumed, and is " + change.after + " now",
                  "it changes what is learned: give --allow-change " + change.key +
                      ", or --resume never and another output folder");
    if (effect == Effect::learning) line += " (allowed)";
    lines.push_back(line);
  }
  return lines;
}

std::vector<std::string> compare_class_names(const std::map<std::string, std::string>& notes, const std::string& path,
                                             const TensorSpecs& now, const std::vector<std::string>& allowed) {
  const auto noted = notes.find("shapes");
  if (noted == notes.end()) return {};
  const auto others = other_names(saved_shapes(noted->second, path).data, now);
  if (!others) return {};
  const auto what = others->text("in " + shown(path), "in today's data");
  const bool is_allowed =
      std::any_of(allowed.begin(), allowed.end(), [](const auto& key) { return key == "data" || key == "data.names"; });
  if (others->apart.is_elsewhere && !is_allowed)
    throw Error(ErrorKind::config, "data", what + ": what was learned of one would be called by the name of another",
                "number the classes as they were, or give --allow-change data.names");
  return {what};
}

void require_not_past(int64_t steps, int64_t step, const std::string& path) {
  if (step > steps)
    throw Error(ErrorKind::config, "run.steps", fmt::format("is {}, and {} is of step {}", steps, shown(path), step),
                "raise it, or choose another run.name");
}

}  // namespace ditto
