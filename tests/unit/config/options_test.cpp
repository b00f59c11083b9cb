// Every option that the host or a plugin here declares, tried in a tiny recipe of tests/options.toml: another value of
// its range changes what is learned or sampled, or is refused, or the option stands in docs/options_idle.md. Given as
// it is by default it changes nothing.
//
// Claim (options): Every declared option changes something with another value, is refused, or stands in a list of
// those that may be idle, and its default given explicitly changes nothing. Also: `options_idle.md`
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>

#include "core/config/include.h"
#include "core/config/option_effects.h"
#include "core/plugin/kinds.h"
#include "tests/support/files.h"
#include "tests/unit/config/option_recipes.h"

namespace ditto {
namespace {

using namespace option_recipes;

// A place where options are declared: "model/dit", or a section of the host's, "ema".
struct Place {
  std::string key, section;
  Words sets;                                 // over the recipe that all share
  std::map<std::string, Words> values, with;  // by option: other values to try; what it acts beside
  std::map<std::string, std::string> elsewhere;
  std::vector<OptionInfo> options;
};

template <class Section>
std::vector<OptionInfo> declared_by(const std::string& name) {
  OptionReader reader(OptionMap{name, "the test", {}}, effect_of_section(name));
  Section().read(reader);
  return reader.declared();
}

// The host's own keys in sections of plugins have no reader of their own.
std::vector<OptionInfo> named(const Words& names) {
  std::vector<OptionInfo> options;
  for (const auto& name : names) options.push_back({name, {}, std::string(), std::string(), {}, false});
  return options;
}

std::map<std::string, std::vector<OptionInfo>> host_options() {
  std::map<std::string, std::vector<OptionInfo>> all{{"run", declared_by<RunOptions>("run")},
                                                     {"lr_schedule", declared_by<LrScheduleOptions>("lr_schedule")},
                                                     {"ema", declared_by<EmaOptions>("ema")},
                                                     {"loader", declared_by<LoaderOptions>("loader")},
                                                     {"batch", declared_by<BatchOptions>("batch")},
                                                     {"adapter", declared_by<AdapterOptions>("adapter")},
                                                     {"tread", declared_by<TreadOptions>("tread")},
                                                     {"parallel", declared_by<ParallelOptions>("parallel")},
                                                     {"checkpoint", declared_by<CheckpointOptions>("checkpoint")},
                                                     {"validate", declared_by<ValidateOptions>("validate")},
                                                     {"validate.picture.0", declared_by<SheetPicture>("validate")},
                                                     {"log", declared_by<report::LogOptions>("log")},
                                                     {"record", declared_by<RecordOptions>("record")},
                                                     {"plugins", declared_by<PluginOptions>("plugins")}};
  for (const std::string section : {"sampler", "network.guide", "encoder.image", "data.part.0", "optimizer.group.0"}) {
    auto keys = own_keys(section);
    std::erase(keys, "parallel");  // a table
    all[section] = named(keys);
  }
  return all;
}

std::string section_of(const std::string& kind, const std::string& id) {
  return kind == "encoder" ? "encoder.image" : kind == "kernels" ? "kernels." + id : kind;
}

std::vector<Place> places() {
  std::vector<Place> all;
  for (auto& [section, options] : host_options()) all.push_back({section, section, {}, {}, {}, {}, std::move(options)});
  for_each_kind([&](auto tag) {
    using Interface = typename decltype(tag)::type;
    for (const auto& file : plugins().files()) {
      if (file.kind != Interface::kKind || !file.refusal.empty() || file.kind == "transport") continue;
      OptionReader reader({file.kind, "the test", {}}, effect_of_options<Interface>());
      plugins().factory<Interface>(file.id).declare(reader);
      if (reader.declared().empty()) continue;
      Place place{file.kind + "/" + file.id, section_of(file.kind, file.id), {}, {}, {}, {}, reader.declared()};
      if (file.kind != "parallel" && file.kind != "kernels") place.sets = {place.section + ".plugin=" + file.id};
      all.push_back(std::move(place));
    }
  });
  return all;
}

// What tests/options.toml says of it.
void complete(Place& place) {
  const auto* all = given_table().find("place")->as<Table>();
  const auto* row = all->find(place.key);
  if (row)
    if (const auto* section = row->as<Table>()->find("section")) {
      place.section = *section->as<std::string>();
      place.sets.clear();
    }
  REQUIRE_MESSAGE(row, "tests/options.toml says nothing of \"" << place.key << "\": add [place.\"" << place.key
                                                               << "\"], with the sets of a recipe in "
                                                               << "which its options act");
  for (const auto& entry : row->as<Table>()->entries()) {
    if (entry.key == "section") continue;
    if (entry.key == "sets")
      for (auto& set : words_of(entry.value)) place.sets.push_back(std::move(set));
    else if (entry.key == "elsewhere")
      for (const auto& one : entry.value.as<Table>()->entries())
        place.elsewhere[one.key] = *one.value.as<std::string>();
    else
      for (const auto& one : entry.value.as<Table>()->entries())
        (entry.key == "values" ? place.values : place.with)[one.key] = words_of(one.value);
  }
}

// --- values
// --------------------------------------------------------------------------------------------------------------

Words quoted_in(const std::string& text) {
  static const std::regex kQuoted("\"([^\"]*)\"");
  Words all;
  for (std::sregex_iterator it(text.begin(), text.end(), kQuoted), end; it != end; ++it) all.push_back((*it)[1]);
  return all;
}

bool is_choice(const OptionInfo& option) { return option.range.starts_with("one of:"); }

// Other values of the declaration's own range, nearest first.
Words others(const Place& place, const OptionInfo& option) {
  if (const auto it = place.values.find(option.name); it != place.values.end()) return it->second;
  Words all;
  if (const auto* flag = std::get_if<bool>(&option.value)) return {*flag ? "false" : "true"};
  if (const auto* whole = std::get_if<int64_t>(&option.value))
    for (const int64_t other : {*whole + 1, *whole - 1, 2 * *whole, *whole / 2, *whole + 4})
      if (other != *whole) all.push_back(std::to_string(other));
  if (const auto* real = std::get_if<double>(&option.value))
    for (const double other : {*real == 0 ? 0.25 : 0.5 * *real, 2 * *real, *real + 1, *real - 0.25})
      if (other != *real) all.push_back(to_text(OptionValue(other)));
  if (std::holds_alternative<std::string>(option.value))
    for (const auto& word : quoted_in(option.range))
      if (word != std::get<std::string>(option.value)) all.push_back(to_text(OptionValue(word)));
  return all;
}

Words with(Words sets, const Place& place, const std::string& option, const std::string& value) {
  const auto key = place.section + "." + option + "=";
  std::erase_if(sets, [&](const std::string& set) { return set.starts_with(key); });
  sets.push_back(key + value);
  return sets;
}

// By key, "run.threads" or "model/dit.patch_frames".
const std::map<std::string, std::string>& allowed_to_be_idle() {
  static const auto rows = [] {
    std::map<std::string, std::string> all;
    std::ifstream page(std::string(DITTO_SOURCE_DIR) + "/docs/options_idle.md");
    const std::regex row("^\\| (`.*`) \\| (.*) \\|$"), key("`([^`]+)`");
    for (std::string line; std::getline(page, line);) {
      std::smatch cells;
      if (!std::regex_match(line, cells, row)) continue;
      const std::string keys = cells[1];
      for (std::sregex_iterator it(keys.begin(), keys.end(), key), end; it != end; ++it) all[(*it)[1]] = cells[2];
    }
    return all;
  }();
  return rows;
}

struct Tried {
  bool acts = false;
  Words idle, refused;  // values
};

Tried tried(const Place& place, const OptionInfo& option, const Words& sets) {
  Tried all;
  const auto& before = outcome_of(sets);
  CHECK_MESSAGE(before.refusal.empty(), place.key << " beside " << option.name << ": " << before.refusal);
  for (const auto& value : others(place, option)) {
    const auto set = place.section + "." + option.name + "=" + value;
    if (std::find(sets.begin(), sets.end(), set) != sets.end()) continue;  // it is so
    const auto& after = outcome_of(with(sets, place, option.name, value));
    if (!after.refusal.empty())
      all.refused.push_back(value + ": " + after.refusal);
    else if (after.hash == before.hash)
      all.idle.push_back(value);
    else
      all.acts = true;
    if (all.acts && !is_choice(option)) break;
  }
  return all;
}

std::string joined(const Words& words) {
  std::string text;
  for (const auto& word : words) text += "\n    " + word;
  return text;
}

bool mentions(const std::string& file, const std::string& option) {
  std::ifstream in(std::string(DITTO_SOURCE_DIR) + "/" + file);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  return std::regex_search(text, std::regex("\\b" + option + "\\b"));
}

// A published size is other options' values; to train one takes longer than a test may.
bool presets_say_something(const Place& place, const OptionInfo& option) {
  const auto declared = [&](const std::string& preset) {
    OptionMap given{place.section, "the test", {{"preset", {preset, "the test"}}}};
    OptionReader reader(given);
    plugins().factory<Model>(place.key.substr(place.key.find('/') + 1)).declare(reader);
    std::map<std::string, OptionValue> values;
    for (const auto& one : reader.declared())
      if (one.name != "preset") values[one.name] = one.value;
    return values;
  };
  const auto names = quoted_in(option.range);
  const auto before = declared("");
  return std::any_of(names.begin(), names.end(), [&](const auto& name) { return declared(name) != before; });
}

void judge(const Place& place, const OptionInfo& option, std::set<std::string>& found_idle) {
  const auto key = place.key + "." + option.name;
  if (option.effect != Effect::learning && option.effect != Effect::course)
    found_idle.insert(key);  // a rounding that it changes shows on some machines alone
  const bool may_be_idle = allowed_to_be_idle().count(key) > 0;
  if (const auto it = place.elsewhere.find(option.name); it != place.elsewhere.end()) {
    CHECK_MESSAGE(mentions(it->second, option.name),
                  it->second << " is to show what " << key << " does, and does not name it");
    return;
  }
  if (option.name == "preset") {
    CHECK_MESSAGE(presets_say_something(place, option), key << " leaves all other options as they are");
    return;
  }
  const auto plain = tried(place, option, place.sets);
  const bool is_idle = !plain.idle.empty() && (is_choice(option) || !plain.acts);
  if (is_idle) {
    found_idle.insert(key);
    CHECK_MESSAGE(may_be_idle, key << " = " << plain.idle.front()
                                   << " is taken and changes nothing that is learned or sampled: refuse it "
                                      "(OptionReader::only_if), or say why in docs/options_idle.md");
  }
  const auto it = place.with.find(option.name);
  if (it != place.with.end()) {
    auto sets = place.sets;
    sets.insert(sets.end(), it->second.begin(), it->second.end());
    const auto beside = tried(place, option, sets);
    CHECK_MESSAGE(beside.acts, key << " changes nothing beside what tests/options.toml gives it in `with`"
                                   << joined(beside.refused));
    return;
  }
  CHECK_MESSAGE((plain.acts || is_idle),
                key << " has no other value that is taken: give it `values`, what it acts beside in `with`, or the "
                       "test that shows what it does in `elsewhere`, in tests/options.toml"
                    << joined(plain.refused));
}

}  // namespace

TEST_CASE("every declared option acts, is refused where it does not, or stands in docs/options_idle.md") {
  std::set<std::string> found_idle, keys;
  int64_t count = 0;
  for (auto& place : places()) {
    complete(place);
    for (const auto& option : place.options) {
      judge(place, option, found_idle);
      keys.insert(option.name);
      ++count;
    }
    for (const auto* rows : {&place.values, &place.with})
      for (const auto& [name, row] : *rows)
        CHECK_MESSAGE(keys.count(name),
                      "tests/options.toml has a row for " << place.key << "." << name << ", which is no option");
  }
  CHECK(count > 338);
  for (const auto& [key, why] : allowed_to_be_idle()) {
    CHECK_MESSAGE(found_idle.count(key),
                  "docs/options_idle.md has " << key << ", which acts, is refused, or is no option");
    CHECK_MESSAGE(why.size() > 10, key << ": why?");
  }
}

TEST_CASE("an option that is given as it is by default changes nothing, and is refused nowhere") {
  for (auto& place : places()) {
    complete(place);
    const auto& before = outcome_of(place.sets);
    REQUIRE_MESSAGE(before.refusal.empty(), place.key << ": " << before.refusal);
    Outcome after;
    try {
      after.hash = made_by(Recipe::parse(before.resolved, "resolved.toml"));
    } catch (const Error& error) {
      after.refusal = error.what();
    }
    CHECK_MESSAGE(after.refusal.empty(), place.key << ": " << after.refusal);
    CHECK_MESSAGE(after.hash == before.hash, place.key << ": a run of its run.toml makes other numbers");
  }
}

}  // namespace ditto
