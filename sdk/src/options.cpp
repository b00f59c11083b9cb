#include <ditto/options.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "idle_option.h"

namespace ditto {

namespace {

std::string number_text(double value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  std::string text(buffer, end);
  if (std::isfinite(value) && text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string quoted(const std::string& value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') text += '\\';
    if (c == '\n') {
      text += "\\n";
    } else {
      text += c;
    }
  }
  return text + '"';
}

template <class T>
std::string list_text(const std::vector<T>& values) {
  std::string text = "[";
  for (const T& value : values) text += (text.size() > 1 ? ", " : "") + to_text(OptionValue(value));
  return text + "]";
}

// The given value in the default's type; nullptr-like (false) if it does not convert.
bool convert(const OptionValue& given, OptionValue& into) {
  if (given.index() == into.index()) {
    into = given;
    return true;
  }
  if (std::holds_alternative<double>(into) && std::holds_alternative<int64_t>(given)) {
    into = static_cast<double>(std::get<int64_t>(given));
    return true;
  }
  if (const auto* list = std::get_if<std::vector<int64_t>>(&given)) {
    if (std::holds_alternative<std::vector<double>>(into)) {
      into = std::vector<double>(list->begin(), list->end());
      return true;
    }
    if (list->empty()) {  // an empty array has no type of its own
      into = std::holds_alternative<std::vector<std::string>>(into) ? OptionValue(std::vector<std::string>{}) : into;
      return std::holds_alternative<std::vector<std::string>>(into);
    }
  }
  return false;
}

Error rejection(const OptionMap& given, std::string_view name, std::string_view what, std::string_view remedy) {
  const auto it = given.given.find(std::string(name));
  const std::string& where = it != given.given.end() ? it->second.where : given.where;
  const std::string full = given.section.empty() ? std::string(name) : given.section + "." + std::string(name);
  return {ErrorKind::config, where, full + " " + std::string(what), remedy};
}

}  // namespace

std::string to_text(const OptionValue& value) {
  return std::visit(
      [](const auto& v) -> std::string {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, bool>)
          return v ? "true" : "false";
        else if constexpr (std::is_same_v<T, int64_t>)
          return std::to_string(v);
        else if constexpr (std::is_same_v<T, double>)
          return number_text(v);
        else if constexpr (std::is_same_v<T, std::string>)
          return quoted(v);
        else
          return list_text(v);
      },
      value);
}

const char* type_name(const OptionValue& value) {
  constexpr const char* names[] = {"a boolean",          "an integer",           "a number",
                                   "a string",           "an array of integers", "an array of numbers",
                                   "an array of strings"};
  return names[value.index()];
}

const char* name(Effect effect) {
  constexpr const char* names[] = {"learning", "course", "bits", "speed", "nothing"};
  return names[static_cast<size_t>(effect)];
}

OptionReader::OptionReader(const OptionMap& given, Effect effect) : given_(given), effect_(effect) {}
OptionReader::~OptionReader() = default;

const OptionValue* OptionReader::declare(const char* name, OptionValue fallback, const char* help) {
  const auto same = [&](const OptionInfo& info) { return info.name == name; };
  if (std::any_of(declared_.begin(), declared_.end(), same))
    throw Error(ErrorKind::plugin, given_.section, "the option \"" + std::string(name) + "\" is declared twice",
                "the plugin's Options::read is to declare each name once");
  OptionInfo info{name, help, fallback, fallback, {}, false, effect_};
  const auto it = given_.given.find(name);
  if (it != given_.given.end()) {
    if (!convert(it->second.value, info.value))
      throw Error(ErrorKind::config, it->second.where,
                  given_.section + "." + name + " is " + to_text(it->second.value) + ", " + type_name(it->second.value),
                  std::string("expected ") + type_name(fallback) + ", such as " + to_text(fallback));
    const auto* number = std::get_if<double>(&info.value);
    if (number && std::isinf(*number) && std::isfinite(std::get<double>(fallback)))
      throw Error(ErrorKind::config, it->second.where, given_.section + "." + name + " is " + to_text(it->second.value),
                  "expected a finite number");
    info.given = true;
  }
  declared_.push_back(std::move(info));
  return declared_.back().given ? &declared_.back().value : nullptr;
}

void OptionReader::set_range(size_t index, std::string range) {
  auto& text = declared_[index].range;
  text = text.empty() ? std::move(range) : text + ", " + range;
}

void OptionReader::out_of_range(size_t index, std::string_view expected) const {
  const auto& info = declared_[index];
  std::string remedy = "expected " + std::string(expected);
  const auto is_given = [](const OptionInfo& other) { return other.given; };
  if (std::none_of(declared_.begin(), declared_.end(), is_given))  // else another option may have set the range
    throw Error(
        ErrorKind::plugin, given_.section,
        "the default of the option \"" + info.name + "\" is " + to_text(info.value) + ", which it does not allow",
        remedy + "; the plugin's Options is to hold such a default");
  if (const auto* text = std::get_if<std::string>(&info.value); text && expected.starts_with("one of:")) {
    std::vector<std::string> names;
    for (size_t at = 0; (at = expected.find('"', at)) != std::string_view::npos;) {
      const size_t end = expected.find('"', at + 1);
      names.emplace_back(expected.substr(at + 1, end - at - 1));
      at = end + 1;
    }
    if (const auto near = nearest(*text, names); !near.empty()) remedy += "; did you mean \"" + near + "\"?";
  }
  throw rejection(given_, info.name, "is " + to_text(info.value) + (info.given ? "" : " by default"), remedy);
}

RejectedOption::RejectedOption(const Error& error) : Error(error) {}
RejectedOption::~RejectedOption() = default;

IdleOption::IdleOption(const Error& error, std::string option) : Error(error), option_(std::move(option)) {}
IdleOption::~IdleOption() = default;

void OptionReader::reject(std::string_view name, std::string_view what, std::string_view remedy) const {
  throw RejectedOption(rejection(given_, name, what, remedy));
}

void OptionReader::only_if(bool applies, const std::vector<std::string>& names, std::string_view why) const {
  if (applies) return;
  for (const auto& info : declared_)
    if (info.given && info.value != info.fallback && std::find(names.begin(), names.end(), info.name) != names.end())
      throw IdleOption(rejection(given_, info.name, why, "leave it out"), info.name);
}

void OptionReader::replaced_by(std::string_view now, std::string_view plugin, std::string_view name,
                               std::string_view value) const {
  const auto it = given_.given.find(std::string(name));
  if (it == given_.given.end()) return;
  const auto* text = std::get_if<std::string>(&it->second.value);
  if (!value.empty() && (!text || *text != value)) return;
  throw Error(ErrorKind::config, it->second.where,
              given_.section + "." + it->first + (value.empty() ? "" : " = \"" + std::string(value) + "\"") +
                  " is not " + std::string(plugin) + "'s",
              "set " + given_.section + ".plugin = \"" + std::string(now) + "\", which it is an option of");
}

void OptionReader::finish() const {
  std::vector<std::string> names;
  for (const auto& info : declared_) names.push_back(info.name);
  for (const auto& [key, option] : given_.given) {
    if (std::find(names.begin(), names.end(), key) != names.end()) continue;
    const std::string near = nearest(key, names);
    std::string all;
    for (const auto& name : names) all += (all.empty() ? "" : ", ") + name;
    throw Error(ErrorKind::config, option.where, "[" + given_.section + "] has no option \"" + key + "\"",
                !near.empty() ? "did you mean \"" + near + "\"?"
                : all.empty() ? std::string("it takes none")
                              : "it has: " + all);
  }
}

}  // namespace ditto
