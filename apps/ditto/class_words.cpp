#include "apps/ditto/class_words.h"

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>

#include <fmt/format.h>

#include <ditto/error.h>
#include <ditto/options.h>
#include <ditto/text.h>

#include "apps/ditto/numbers.h"
#include "core/formats/names.h"

namespace ditto {

namespace {

constexpr const char* kOption = "--classes";
constexpr std::string_view kNumber = "number:";

using Classes = std::vector<int64_t>;

class ClassWords {
 public:
  ClassWords(const std::string& text, const TensorSpec& label) : text_(text), label_(label) {
    for (const auto& name : label.names)
      most_parts_ = std::max(most_parts_, 1 + static_cast<size_t>(std::count(name.begin(), name.end(), ',')));
    for (size_t i = 0; i < label.names.size(); ++i)
      if (const auto number = formats::number_of_name(label.names[i]))
        by_number_[*number].push_back(static_cast<int64_t>(i));
  }

  Classes all() const {
    std::vector<std::string> parts;
    std::istringstream words(text_);
    for (std::string part; std::getline(words, part, ',');) parts.push_back(part);
    if (parts.empty()) return number_list(text_, kOption);  // which says that it is none
    Classes classes;
    for (size_t at = 0, count = 1; at < parts.size(); at += count) {
      count = parts_of_name(parts, at);
      const auto more = count > 1 ? whole(parts, at, count) : of(parts[at]);
      classes.insert(classes.end(), more.begin(), more.end());
    }
    for (const int64_t number : classes)
      if (number >= label_.values)
        refuse(fmt::format("{} is not a class of this model", number),
               fmt::format("its classes are 0 to {}", label_.values - 1));
    return classes;
  }

 private:
  bool is_name(const std::string& word) const {
    return std::find(label_.names.begin(), label_.names.end(), word) != label_.names.end();
  }

  static std::string joined(const std::vector<std::string>& parts, size_t at, size_t count) {
    std::string text = parts[at];
    for (size_t i = 1; i < count; ++i) text += "," + parts[at + i];
    return text;
  }

  // How many parts the longest name that begins at one is of; 1: none is of more.
  size_t parts_of_name(const std::vector<std::string>& parts, size_t at) const {
    for (size_t count = std::min(parts.size() - at, most_parts_); count > 1; --count)
      if (is_name(joined(parts, at, count))) return count;
    return 1;
  }

  // "tench, Tinca tinca": a name with a comma.
  Classes whole(const std::vector<std::string>& parts, size_t at, size_t count) const {
    const auto name = joined(parts, at, count);
    const auto begin = parts.begin() + static_cast<std::ptrdiff_t>(at);
    if (std::all_of(begin, begin + static_cast<std::ptrdiff_t>(count),
                    [this](const auto& one) { return is_name(one); }))
      refuse((name == text_ ? "" : '"' + shown(name) + "\" ") + "is the name of a class, and a list of names of others",
             fmt::format("give numbers; the class called so is {}{}", kNumber, named(name).front()));
    return named(name);
  }

  Classes of(const std::string& word) const {
    if (is_name(word)) {
      if (const auto range = range_of_names(word))
        refuse('"' + shown(word) + "\" is the name of a class, and a range of names of others",
               fmt::format("give {}{} for the one, or all names of the others", kNumber, named(word).front()));
      return named(word);
    }
    if (word.starts_with(kNumber)) return number_list(word.substr(kNumber.size()), kOption);
    const bool is_word = word.find_first_not_of("0123456789-") != std::string::npos;
    if (is_word && !label_.names.empty()) {
      const auto near = meant(word);
      refuse('"' + shown(word) + "\" is not a class of this model",
             (near.empty() ? "" : "did you mean \"" + near + "\"? ") +
                 fmt::format("its classes are 0 to {}, \"{}\" to \"{}\"", label_.values - 1, label_.names.front(),
                             label_.names.back()));
    }
    if (by_number_.empty()) return number_list(word, kOption);
    if (const auto range = range_of_names(word)) return *range;
    const auto& [least, classes] = *by_number_.begin();
    refuse('"' + shown(word) + "\" is not the name of a class, and this model's classes are called by numbers",
           fmt::format("name them as they are called, {} to {}, or give {}{} for a number; {} is called {}",
                       label_.names[static_cast<size_t>(classes.front())],
                       label_.names[static_cast<size_t>(by_number_.rbegin()->second.front())], kNumber, word,
                       classes.front(), label_.names[static_cast<size_t>(classes.front())]));
  }

  // "red, blue" of "red": a part of a name that commas make is nowhere near the whole of it by its letters.
  std::string meant(const std::string& word) const {
    for (const auto& name : label_.names) {
      std::istringstream parts(name);
      for (std::string part; std::getline(parts, part, ',');)
        if (part.substr(std::min(part.find_first_not_of(' '), part.size())) == word && part != name) return name;
    }
    return nearest(word, label_.names);
  }

  Classes named(const std::string& word) const {
    const auto first = std::find(label_.names.begin(), label_.names.end(), word);
    const auto other = std::find(first + 1, label_.names.end(), word);  // as ImageNet has two cranes
    if (other != label_.names.end())
      refuse('"' + shown(word) + "\" is more than one class",
             fmt::format("give a number: {0}{1} or {0}{2}", by_number_.empty() ? "" : kNumber,
                         first - label_.names.begin(), other - label_.names.begin()));
    return {first - label_.names.begin()};
  }

  // "3" or "1-3" where each number from the first to the last is the name of one class.
  std::optional<Classes> range_of_names(const std::string& word) const {
    const auto dash = word.find('-');
    if (word.find_first_not_of("0123456789-") != std::string::npos) return {};
    const auto first = formats::number_of_name(word.substr(0, dash));
    const auto last = dash == std::string::npos ? first : formats::number_of_name(word.substr(dash + 1));
    if (!first || !last || *last < *first || *last - *first >= static_cast<double>(label_.values)) return {};
    Classes classes;
    for (int64_t i = 0; i <= static_cast<int64_t>(*last - *first); ++i) {
      const auto found = by_number_.find(*first + static_cast<double>(i));
      if (found == by_number_.end() || found->second.size() > 1) return {};
      classes.push_back(found->second.front());
    }
    if (dash == std::string::npos && is_name(word)) return {};
    return classes;
  }

  [[noreturn]] void refuse(const std::string& what, const std::string& remedy) const {
    throw Error(ErrorKind::config, std::string(kOption) + " " + shown(text_), what, remedy);
  }

  const std::string& text_;
  const TensorSpec& label_;
  size_t most_parts_ = 1;                // that commas make of a name
  std::map<double, Classes> by_number_;  // classes that are called by a number
};

}  // namespace

std::vector<int64_t> classes_named(const std::string& text, const TensorSpec& label) {
  return ClassWords(text, label).all();
}

std::string told_apart(const std::vector<int64_t>& labels, const TensorSpec& label) {
  for (const int64_t number : labels) {
    if (number < 0 || number >= static_cast<int64_t>(label.names.size())) continue;
    const auto& name = label.names[static_cast<size_t>(number)];
    if (const auto called = formats::number_of_name(name); called && *called != static_cast<double>(number))
      return fmt::format("\"{}\" are numbers of classes, and no names: {} is the class called \"{}\"", label.name,
                         number, shown(name));
  }
  return {};
}

}  // namespace ditto
