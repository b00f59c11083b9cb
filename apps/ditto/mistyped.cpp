#include "apps/ditto/mistyped.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ditto/error.h>
#include <ditto/options.h>
#include <ditto/text.h>

#include "apps/ditto/choices.h"
#include "core/config/sections.h"
#include "core/network/saved_model.h"

namespace ditto {

namespace {

using Words = std::vector<std::string>;

Words names_of(const std::vector<const CLI::App*>& commands) {
  Words names;
  for (const auto* command : commands)
    if (!command->get_group().empty()) names.push_back(command->get_name());
  return names;
}

std::vector<const CLI::App*> below(const CLI::App& group) {
  return group.get_subcommands([](const CLI::App*) { return true; });
}

std::string meant(const std::string& what) { return what.empty() ? "" : "did you mean " + what + "? "; }

// --- options that there are not -------------------------------------------------------------------

// The first word that begins as an option, is none of the command's, and is no option's value.
std::optional<std::pair<std::string, std::string>> unknown_flag(const CommandAsked& asked) {
  const auto& words = asked.rest;
  const auto is_number = [](const std::string& word) {
    return word.size() > 1 && (std::isdigit(static_cast<unsigned char>(word[1])) || word[1] == '.');
  };
  for (size_t i = 0; i < words.size() && words[i] != "--"; ++i) {
    const auto& word = words[i];
    if (word.size() < 2 || word[0] != '-' || is_number(word)) continue;
    const auto equals = word.find('=');
    const auto name = word.starts_with("--") ? word.substr(0, equals) : word.substr(0, 2);
    const auto* option = asked.command->get_option_no_throw(name);
    if (!option) {
      const bool has_next = equals == std::string::npos && i + 1 < words.size() &&
                            (!words[i + 1].starts_with('-') || is_number(words[i + 1]));
      return std::pair(name, equals != std::string::npos ? word.substr(equals + 1) : has_next ? words[i + 1] : "");
    }
    if (equals == std::string::npos && word == name)
      i += static_cast<size_t>(std::max(0, option->get_items_expected_min()));
  }
  return {};
}

// "init_from" of "--init-from", and back.
std::string as_option(const std::string& flag) {
  auto name = flag.substr(std::min(flag.find_first_not_of('-'), flag.size()));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
std::string as_flag(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return "--" + name;
}

// What others call what Ditto has: an option of a command's own, or one of a recipe. Of those of one name the first
// that a command takes is meant.
constexpr std::pair<const char*, const char*> kCalledOtherwise[] = {{"batch_size", "--batch"},
                                                                    {"batch_size", "run.batch"},
                                                                    {"cfg", "--guidance"},
                                                                    {"cfg", "guidance.scale"},
                                                                    {"cfg_scale", "--guidance"},
                                                                    {"cfg_scale", "guidance.scale"},
                                                                    {"data", "data.path"},
                                                                    {"depth", "model.depth"},
                                                                    {"ema", "ema.decay"},
                                                                    {"gpus", "--local-ranks"},
                                                                    {"grad_clip", "run.clip_norm"},
                                                                    {"guidance", "guidance.scale"},
                                                                    {"guidance_scale", "--guidance"},
                                                                    {"guidance_scale", "guidance.scale"},
                                                                    {"heads", "model.heads"},
                                                                    {"image_size", "--size"},
                                                                    {"iterations", "run.steps"},
                                                                    {"learning_rate", "lr_schedule.lr"},
                                                                    {"max_grad_norm", "run.clip_norm"},
                                                                    {"max_steps", "run.steps"},
                                                                    {"nproc_per_node", "--local-ranks"},
                                                                    {"num_inference_steps", "--steps"},
                                                                    {"num_inference_steps", "sampler.steps"},
                                                                    {"num_steps", "--steps"},
                                                                    {"num_steps", "run.steps"},
                                                                    {"num_workers", "loader.threads"},
                                                                    {"out", "run.output"},
                                                                    {"output", "--out"},
                                                                    {"output", "run.output"},
                                                                    {"output_dir", "--out"},
                                                                    {"output_dir", "run.output"},
                                                                    {"patch", "model.patch"},
                                                                    {"resolution", "--size"},
                                                                    {"weight_decay", "optimizer.weight_decay"},
                                                                    {"width", "model.width"},
                                                                    {"workers", "loader.threads"}};

std::string last_of(const std::string& key) { return key.substr(key.rfind('.') + 1); }

// Everything that is called so, whichever command takes it: others' names, sections of a plugin, options of a recipe.
Words called(const std::string& name) {
  Words found;
  for (const auto& [word, is] : kCalledOtherwise)
    if (word == name) found.emplace_back(is);
  if (!found.empty()) return found;
  for (const auto& key : option_keys())
    if (key == name + ".plugin" || (last_of(key) == name && name != "plugin")) found.push_back(key);
  return found;
}

// Whether it would not answer `--set KEY=…` with a refusal, as those do that take a model that has learned.
bool takes(const CommandAsked& asked, const std::string& key) {
  if (!asked.command->get_option_no_throw("--set")) return false;
  const auto is = [&](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), asked.name) != names.end();
  };
  const bool samples = is({"ditto sample", "ditto bench sample"}), evaluates = is({"ditto evaluate"});
  const bool neither = is({"ditto forward", "ditto checkpoint export"});
  if ((samples || evaluates || neither) && key.starts_with("model.")) return false;  // its weights are of its sizes
  if ((samples || neither) && why_idle(key, SavedUse::sampling)) return false;
  return !(evaluates || neither) || !why_idle(key, SavedUse::evaluation);
}

// "--out", or "--set run.steps=5 (or sampler.steps)", of what the command takes of `all`; empty: of none.
std::string of_these(const CommandAsked& asked, const Words& all, const std::string& value) {
  std::string first, others;
  for (const auto& one : all) {
    if (one.starts_with("--")) {
      if (first.empty() && asked.command->get_option_no_throw(one)) return one;
    } else if (takes(asked, one)) {
      if (first.empty())
        first = "--set " + shown(one) + "=" + (value.empty() ? "VALUE" : shown(value));
      else
        others += (others.empty() ? " (or " : ", ") + one;
    }
  }
  return first + (others.empty() ? "" : others + ")");
}

// Of "run.steps", whose section may be mistyped. Options of plugins are theirs to know.
std::string meant_of_key(const CommandAsked& asked, const std::string& name, const std::string& value) {
  const auto section = name.substr(0, name.find('.'));
  Words names, own;
  for (const auto& entry : sections()) names.emplace_back(entry.name);
  if (std::find(names.begin(), names.end(), section) == names.end()) {
    const auto near = nearest(section, names);
    return near.empty() ? "" : meant_of_key(asked, near + name.substr(section.size()), value);
  }
  for (const auto& key : option_keys())
    if (key.starts_with(section + ".")) own.push_back(key);
  const bool is_of_plugin = own.empty() || std::find(own.begin(), own.end(), section + ".plugin") != own.end();
  const bool is_there = is_of_plugin || std::find(own.begin(), own.end(), name) != own.end();
  return of_these(asked, {is_there ? name : nearest(name, own)}, value);
}

Words own_flags(const CLI::App& command) {
  Words names;
  for (const auto* option : command.get_options())
    for (const auto& name : option->get_lnames()) names.push_back(as_option(name));
  return names;
}

// A letter names no option of a recipe.
std::string meant_by_letter(const CLI::App& command, char letter) {
  Words found;
  for (const auto& name : own_flags(command))
    if (name[0] == letter) found.push_back(as_flag(name));
  return found.size() <= 2 ? fmt::format("{}", fmt::join(found, " or ")) : "";
}

std::string meant_by(const CommandAsked& asked, const std::string& flag, const std::string& value) {
  if (!flag.starts_with("--")) return meant_by_letter(*asked.command, flag[1]);
  const auto name = as_option(flag);
  if (name.find('.') != std::string::npos) return meant_of_key(asked, name, value);
  const auto known = called(name);
  if (auto these = of_these(asked, known, value); !these.empty()) return these;
  constexpr size_t kShort = 4;  // anything is near to a word of fewer letters
  auto names = own_flags(*asked.command);
  const auto flags = names;
  if (known.empty() && name.size() >= kShort)
    for (const auto& key : option_keys())
      if (const auto last = last_of(key); last.size() >= kShort && last != "plugin") names.push_back(last);
  if (name.size() < kShort) std::erase_if(names, [&](const auto& one) { return one[0] != name[0]; });
  const auto near = nearest(name, names);
  if (near.empty()) return {};
  const bool is_own = std::find(flags.begin(), flags.end(), near) != flags.end();
  return is_own ? as_flag(near) : of_these(asked, called(near), value);
}

void refuse_unknown_flag(const CommandAsked& asked) {
  const auto unknown = unknown_flag(asked);
  if (!unknown) return;
  const auto& [flag, value] = *unknown;
  const auto name = as_option(flag);
  const bool of_epochs = name == "epochs" || name == "num_epochs" || name == "max_epochs";
  throw Error(ErrorKind::config, asked.name, "there is no option \"" + shown(flag) + "\"",
              (of_epochs && takes(asked, "run.steps") ? "steps are counted, not epochs: --set run.steps=VALUE; "
                                                      : meant(meant_by(asked, flag, value))) +
                  ("see `" + asked.name + " --help`"));
}

// --- values and words that cannot be taken --------------------------------------------------------

// That a message of CLI11's begins with.
const CLI::Option* option_of(const CLI::App& command, const std::string& message) {
  for (const auto* option : command.get_options()) {
    const auto name = option->get_name();
    for (const char* end : {":", " requires", " is required", " excludes", " was given"})
      if (message.starts_with(name + end)) return option;
    if (message.starts_with("Could not convert: " + name + " = ")) return option;
  }
  return nullptr;
}

// "a whole number from 4 to 1024" of "INT:INT in [4 - 1024]"; empty: unknown.
std::string expected_of(const CLI::Option& option) {
  const auto type = option.get_type_name();
  const bool is_natural = type.starts_with("UINT"), is_whole = is_natural || type.starts_with("INT");
  if (!is_whole && !type.starts_with("FLOAT")) return {};
  std::string text = is_whole ? "a whole number" : "a number";
  if (type.find(":POSITIVE") != std::string::npos) return text + " above 0";
  const auto open = type.find('['), dash = type.find(" - ", open), close = type.find(']', open);
  if (open != std::string::npos && dash != std::string::npos && close != std::string::npos)
    return text + " from " + type.substr(open + 1, dash - open - 1) + " to " + type.substr(dash + 3, close - dash - 3);
  return text + (is_natural || type.find(":NONNEGATIVE") != std::string::npos ? " of at least 0" : "");
}

// What is wrong with what an option was given, and what to do.
std::pair<std::string, std::string> wrong_with(const CLI::Option& option, const CLI::ParseError& error) {
  const auto& given = option.results();
  if (option.get_items_expected_max() == 0) return {"takes no value", "give it alone; "};
  if (error.get_name() == "ArgumentMismatch" && given.size() > 1)
    return {fmt::format("is given {} times", given.size()), "give it once; "};
  if (error.get_name() == "ArgumentMismatch") return {"needs a value", ""};
  const auto expected = expected_of(option);
  const auto words = choices_of(option);
  if (given.size() != 1 || (expected.empty() && words.empty())) return {shown(error.what(), kSentenceShown), ""};
  const auto& value = given.front();
  const auto quoted = "\"" + shown(value) + "\"";
  if (!words.empty())
    return {fmt::format("{} is none of {}", quoted, fmt::join(words, ", ")), meant(nearest(value, words))};
  const bool is_whole = value.find_first_not_of("0123456789", value.starts_with('-')) == std::string::npos;
  if (error.get_name() == "ConversionError" && is_whole) return {quoted + " is out of range", ""};
  return {quoted + " is not " + expected, ""};
}

// Words that are too many. One behind `--set KEY` is its value.
[[noreturn]] void refuse_words(const CommandAsked& asked, const Words& extra, const std::string& see) {
  for (size_t i = 0; i + 1 < asked.rest.size(); ++i) {
    const auto& [flag, key] = std::pair(asked.rest[i], asked.rest[i + 1]);
    if ((flag != "--set" && flag != "--with") || key.find('=') != std::string::npos) continue;
    const auto value = i + 2 < asked.rest.size() ? asked.rest[i + 2] : "VALUE";
    throw Error(ErrorKind::config, flag + " " + shown(key), "is not KEY=VALUE",
                fmt::format("write {} {}={}", flag, shown(key), shown(value)));
  }
  Words said;
  for (const auto& word : extra)
    if (word != "--") said.push_back("\"" + shown(word) + "\"");
  throw Error(ErrorKind::config, asked.name, fmt::format("takes no {}", fmt::join(said, ", ")), "leave it out; " + see);
}

}  // namespace

CommandAsked asked_for(const CLI::App& app, const Words& words) {
  CommandAsked asked{&app, "ditto", words};
  while (!asked.rest.empty()) {
    const auto found = asked.command->get_subcommands(
        [&](const CLI::App* command) { return command->get_name() == asked.rest.front(); });
    if (found.empty()) break;
    asked.command = found.front();
    asked.name += " " + asked.rest.front();
    asked.rest.erase(asked.rest.begin());
  }
  return asked;
}

void refuse_unknown_command(const CLI::App& app, const Words& arguments) {
  const CLI::App* group = &app;
  std::string words = "ditto";
  for (const auto& word : arguments) {
    const auto commands = below(*group);
    if (commands.empty() || word.starts_with('-')) return;
    const auto next = std::find_if(commands.begin(), commands.end(),
                                   [&](const CLI::App* command) { return command->get_name() == word; });
    if (next == commands.end()) {
      const auto names = names_of(commands);
      const auto near = nearest(word, names);
      throw Error(ErrorKind::config, words, "there is no command \"" + shown(word) + "\"",
                  meant(near.empty() ? "" : "\"" + near + "\"") + fmt::format("there are: {}", fmt::join(names, ", ")));
    }
    words += " " + word;
    group = *next;
  }
}

void refuse_misread(const CLI::App& app, const Words& arguments, const CLI::ParseError& error) {
  const auto asked = asked_for(app, arguments);
  refuse_unknown_flag(asked);
  const auto commands = names_of(below(*asked.command));
  if (!commands.empty())
    throw Error(ErrorKind::config, asked.name, "needs a command",
                fmt::format("there are: {}", fmt::join(commands, ", ")));
  const auto see = "see `" + asked.name + " --help`";
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError))
    refuse_words(asked, app.remaining(true), see);
  const std::string message = error.what();
  const auto* option = option_of(*asked.command, message);
  const bool is_of_value = error.get_name() == "ValidationError" || error.get_name() == "ConversionError" ||
                           error.get_name() == "ArgumentMismatch";
  if (option && is_of_value) {
    const auto [what, remedy] = wrong_with(*option, error);
    throw Error(ErrorKind::config, option->get_name(), what, remedy + see);
  }
  throw Error(ErrorKind::config, asked.name, shown(message, kSentenceShown), see);
}

}  // namespace ditto
