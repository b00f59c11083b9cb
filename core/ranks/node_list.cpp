#include "core/ranks/node_list.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include <ditto/error.h>

namespace ditto {

namespace {

using Names = std::vector<std::string>;

constexpr size_t kMostNames = 65'536;  // Slurm's own limit of a range
constexpr size_t kMostDigits = 18;     // of a number

class Reader {
 public:
  Reader(const std::string& list, const std::string& where) : list_(list), where_(where) {}

  Names read() {
    Names all;
    while (true) {
      auto names = name();
      names.erase(std::remove(names.begin(), names.end(), ""), names.end());  // "a,,b"
      limit(all.size() + names.size());
      all.insert(all.end(), names.begin(), names.end());
      if (at_ == list_.size()) return all;
      ++at_;  // the comma
    }
  }

 private:
  // One element between commas: text and brackets in turn.
  Names name() {
    Names heads{text()}, last{""};  // `last`: of the newest bracket, which counts fastest, with what follows it
    while (at_ < list_.size() && list_[at_] == '[') {
      heads = product(last, heads, [](const auto& tail, const auto& head) { return head + tail; });
      last = bracket();
      const auto behind = text();
      for (auto& one : last) one += behind;
    }
    return product(heads, last, [](const auto& head, const auto& tail) { return head + tail; });
  }

  std::string text() {
    const auto end = std::min(list_.find_first_of(",[]", at_), list_.size());
    const auto part = list_.substr(at_, end - at_);
    if (end < list_.size() && list_[end] == ']') refuse("\"]\" without \"[\"");
    at_ = end;
    return part;
  }

  // "[07-09,11]"
  Names bracket() {
    const auto end = list_.find(']', at_);
    if (end == std::string::npos) refuse("\"[\" without \"]\"");
    Names numbers;
    for (++at_; at_ <= end; ++at_) {
      const auto stop = std::min(list_.find(',', at_), end);
      add_range(list_.substr(at_, stop - at_), numbers);
      at_ = stop;
    }
    return numbers;
  }

  // "07-09": as wide as its first number is written.
  void add_range(const std::string& range, Names& numbers) const {
    const auto dash = range.find('-');
    const auto low = range.substr(0, dash), high = dash == std::string::npos ? low : range.substr(dash + 1);
    const auto first = number(low, range), last = number(high, range);
    if (first > last) refuse("the range \"" + range + "\" goes down");
    if (last - first >= kMostNames) limit(kMostNames + 1);
    limit(numbers.size() + (last - first) + 1);
    for (auto i = first; i <= last; ++i) {
      const auto digits = std::to_string(i);
      numbers.push_back(std::string(low.size() - std::min(low.size(), digits.size()), '0') + digits);
    }
  }

  uint64_t number(const std::string& digits, const std::string& range) const {
    uint64_t value = 0;
    const char* end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, value);
    if (error != std::errc{} || stop != end || digits.size() > kMostDigits)
      refuse("\"" + range + "\" in brackets is no number and no range of numbers");
    return value;
  }

  template <class Join>
  Names product(const Names& slow, const Names& fast, Join join) const {
    limit(slow.size() * fast.size());
    Names all;
    for (const auto& one : slow)
      for (const auto& other : fast) all.push_back(join(one, other));
    return all;
  }

  void limit(size_t names) const {
    if (names > kMostNames) refuse("it stands for more than " + std::to_string(kMostNames) + " names");
  }

  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(ErrorKind::config, where_, "is \"" + list_ + "\": " + why,
                "expected names of machines, as in \"gpu[07-08,11],x1\"");
  }

  const std::string& list_;
  const std::string& where_;
  size_t at_ = 0;
};

}  // namespace

std::vector<std::string> expand_node_list(const std::string& list, const std::string& where) {
  auto names = Reader(list, where).read();
  if (!names.empty()) return names;
  throw Error(ErrorKind::config, where, "is \"" + list + "\", which names no machine",
              "expected names of machines, as in \"gpu[07-08,11],x1\"");
}

}  // namespace ditto
