#include "braces.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

#include <ditto/error.h>
#include <ditto/text.h>

namespace webdataset {

namespace {

constexpr std::size_t kMost = 1'000'000, kLongest = 4096;

class Expansion {
 public:
  Expansion(const std::string& name, const std::string& where) : name_(name), where_(where) {}

  // The text's first braces multiply what follows them.
  std::vector<std::string> of(std::string_view text) const {
    for (std::size_t open = text.find('{'); open != std::string_view::npos; open = text.find('{', open + 1)) {
      const auto close = matching(text, open);
      if (close == std::string_view::npos) continue;
      const auto inside = choices(text.substr(open + 1, close - open - 1));
      if (!inside) continue;
      const auto rest = of(text.substr(close + 1));
      if (inside->size() > kMost / std::max<std::size_t>(rest.size(), 1)) too_many();
      std::vector<std::string> all;
      for (const auto& one : *inside)
        for (const auto& end : rest) all.push_back(std::string(text.substr(0, open)) + one + end);
      return all;
    }
    return {std::string(text)};
  }

 private:
  [[noreturn]] void too_many() const {
    throw ditto::Error(ditto::ErrorKind::data, where_,
                       "\"" + ditto::shown(name_, 120) + "\" stands for more than a million names",
                       "name fewer shards in one pair of braces");
  }

  static std::size_t matching(std::string_view text, std::size_t open) {
    int depth = 0;
    for (std::size_t i = open; i < text.size(); ++i) {
      if (text[i] == '{') ++depth;
      if (text[i] == '}' && --depth == 0) return i;
    }
    return std::string_view::npos;
  }

  // What braces with this inside stand for; nothing: they are only characters.
  std::optional<std::vector<std::string>> choices(std::string_view inside) const {
    std::vector<std::string_view> parts;
    int depth = 0;
    std::size_t begin = 0;
    for (std::size_t i = 0; i <= inside.size(); ++i) {
      if (i < inside.size() && inside[i] == '{') ++depth;
      if (i < inside.size() && inside[i] == '}') --depth;
      if (i < inside.size() && (inside[i] != ',' || depth > 0)) continue;
      parts.push_back(inside.substr(begin, i - begin));
      begin = i + 1;
    }
    if (parts.size() == 1) return range(inside);
    std::vector<std::string> all;
    for (const auto& part : parts)
      for (auto& one : of(part)) {
        if (all.size() == kMost) too_many();
        all.push_back(std::move(one));
      }
    return all;
  }

  static std::optional<std::int64_t> number(std::string_view text) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (text.empty() || error != std::errc{} || end != text.data() + text.size() || value > INT64_MAX / 4 ||
        value < -(INT64_MAX / 4))
      return {};
    return value;
  }

  // "000..127", "9..0..3", "a..e".
  std::optional<std::vector<std::string>> range(std::string_view inside) const {
    const auto first = inside.find("..");
    if (first == std::string_view::npos) return {};
    const auto second = inside.find("..", first + 2);
    const auto from = inside.substr(0, first);
    const auto to = inside.substr(first + 2, second == std::string_view::npos ? second : second - first - 2);
    std::int64_t step = 1;
    if (second != std::string_view::npos) {
      const auto given = number(inside.substr(second + 2));
      if (!given) return {};
      step = std::max<std::int64_t>(*given < 0 ? -*given : *given, 1);
    }
    const auto a = number(from), b = number(to);
    const bool letters = !a && !b && from.size() == 1 && to.size() == 1;
    if (!letters && (!a || !b)) return {};
    const std::int64_t low = letters ? from[0] : *a, high = letters ? to[0] : *b;
    if (static_cast<std::uint64_t>(low < high ? high - low : low - high) / static_cast<std::uint64_t>(step) >= kMost)
      too_many();
    const auto padded = [](std::string_view text) { return text.size() > 1 && text[text[0] == '-' ? 1 : 0] == '0'; };
    const std::size_t width = padded(from) || padded(to) ? std::max(from.size(), to.size()) : 0;
    std::vector<std::string> all;
    for (std::int64_t i = low; low <= high ? i <= high : i >= high; i += low <= high ? step : -step)
      all.push_back(letters ? std::string(1, static_cast<char>(i)) : written(i, width));
    return all;
  }

  static std::string written(std::int64_t value, std::size_t width) {
    auto digits = std::to_string(value < 0 ? -value : value);
    const std::size_t sign = value < 0 ? 1 : 0;
    if (digits.size() + sign < width) digits.insert(0, width - sign - digits.size(), '0');
    return (value < 0 ? "-" : "") + digits;
  }

  const std::string& name_;
  const std::string& where_;
};

}  // namespace

std::vector<std::string> with_braces_expanded(const std::string& name, const std::string& where) {
  if (name.size() > kLongest)
    throw ditto::Error(ditto::ErrorKind::data, where,
                       "names a shard by " + std::to_string(name.size()) + " bytes; at most " +
                           std::to_string(kLongest) + " are read");
  return Expansion(name, where).of(name);
}

}  // namespace webdataset
