#include "core/formats/names.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <set>

#include <ditto/text.h>

namespace ditto::formats {

namespace {

bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

char lowered(char c) { return is_upper(c) ? static_cast<char>(c - 'A' + 'a') : c; }

std::string folded(std::string_view name) {
  std::string out;
  for (const char c : name) out += c == '_' || c == '-' ? ' ' : lowered(c);
  const auto first = out.find_first_not_of(" \t\r\n");
  return first == std::string::npos ? out : out.substr(first, out.find_last_not_of(" \t\r\n") + 1 - first);
}

// "val2017" as {"val"}, "imagenet-train-000000.tar" as {"imagenet", "train", "tar"}, "TestImages" as {"test",
// "images"}. What blanks part is one word, as in "train station".
std::vector<std::string> words_of(std::string_view name) {
  std::vector<std::string> words(1);
  char last = 0;
  for (const char c : name) {
    const bool is_part = !is_digit(c) && c != '_' && c != '-' && c != '.';
    if ((!is_part || (is_upper(c) && is_lower(last))) && !words.back().empty()) words.emplace_back();
    if (is_part) words.back() += lowered(c);
    last = c;
  }
  return words;
}

// Whether it is one of the list's words, if need be with words beside it that say nothing more: "train (1)", "test
// data", and not "train station".
template <class List>
bool is_one_of(const std::string& text, const List& list) {
  constexpr std::array<std::string_view, 12> kPlain{"data",  "dataset", "image",   "images",   "img", "imgs",
                                                    "photo", "photos",  "picture", "pictures", "set", "split"};
  const auto has = [](const auto& words, const std::string& word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  bool found = false;
  for (std::size_t at = 0, end; at <= text.size(); at = end + 1) {
    end = std::min(text.find_first_of(" ()[]", at), text.size());
    const auto word = text.substr(at, end - at);
    found = found || has(list, word);
    if (!word.empty() && !has(list, word) && !has(kPlain, word)) return false;
  }
  return found;
}

}  // namespace

std::string counted(std::size_t count, std::string_view what) {
  return std::to_string(count) + ' ' + std::string(what) + (count == 1 ? "" : "s");
}

std::optional<double> number_of_name(std::string_view name) {
  double value = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), value);
  if (name.find_first_not_of("0123456789+-.eE") != std::string_view::npos || error != std::errc{} ||
      end != name.data() + name.size())
    return {};
  return value;
}

bool is_same_name(std::string_view name, std::string_view other) {
  return name == other || folded(name) == folded(other);
}

std::optional<NamesApart> names_apart(const std::vector<std::string>& names, const std::vector<std::string>& others) {
  if (names == others) return {};
  std::set<std::string> mine, theirs;
  for (const auto& name : names) mine.insert(folded(name));
  for (const auto& name : others) theirs.insert(folded(name));
  std::optional<NamesApart> first;
  for (std::size_t i = 0; i < std::min(names.size(), others.size()); ++i) {
    if (is_same_name(names[i], others[i])) continue;
    const bool is_elsewhere = theirs.count(folded(names[i])) > 0 || mine.count(folded(others[i])) > 0;
    if (is_elsewhere || !first) first = NamesApart{i, names[i], others[i], is_elsewhere};
    if (is_elsewhere) break;
  }
  return first;
}

SetPart part_of_set(std::string_view name) {
  constexpr std::array<std::string_view, 6> kLearned{"train", "training", "trainset", "trainval", "traindir", "trn"};
  constexpr std::array<std::string_view, 15> kHeldOut{"val",  "valid",      "validation", "valset",  "valdir",
                                                      "test", "testing",    "testset",    "testdir", "dev",
                                                      "eval", "evaluation", "holdout",    "heldout", "validate"};
  auto words = words_of(name);
  for (std::size_t i = 0; i + 1 < words.size(); ++i)
    if (words[i + 1] == "out") words[i] += "out";  // "held_out"
  const auto has = [&](const auto& list) {
    return std::any_of(words.begin(), words.end(), [&](const std::string& word) { return is_one_of(word, list); });
  };
  return has(kLearned) ? SetPart::learned : has(kHeldOut) ? SetPart::held_out : SetPart::none;
}

void PartsSeen::add(std::string_view path) {
  const auto folder = path.substr(0, std::min(path.rfind('/') + 1, path.size()));  // none: nothing
  if (folder == last_) return;
  last_ = folder;
  auto part = SetPart::none;
  for (const auto& name : std::filesystem::path(folder))
    if (const auto own = part_of_set(name.string()); own != SetPart::none) part = own;  // the innermost
  if (part == SetPart::learned && learned_.empty()) learned_ = path;
  if (part == SetPart::held_out && held_out_.empty()) held_out_ = path;
}

std::string PartsSeen::sentence() const {
  if (learned_.empty() || held_out_.empty()) return {};
  return '"' + shown(held_out_) + "\" is held out by its folder, and learned from as \"" + shown(learned_) + "\" is";
}

std::string identity_of(const std::string& path) {
  struct stat file {};
  if (::stat(path.c_str(), &file) == 0) return std::to_string(file.st_dev) + ':' + std::to_string(file.st_ino);
  const auto host = path.find("://");
  const auto begin = host == std::string::npos ? 0 : std::min(path.find('/', host + 3), path.size());
  return path.substr(0, begin) + std::filesystem::path(path.substr(begin)).lexically_normal().string();
}

}  // namespace ditto::formats
