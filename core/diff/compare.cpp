#include "core/diff/compare.h"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace ditto::diff {

namespace {

using What = Difference::What;

int64_t numbers_of(const std::vector<int64_t>& shape) {
  int64_t product = 1;
  for (const int64_t size : shape) product *= size;
  return product;
}

// What rounding may do to terms that are added: far less than any mistake does.
double rounding_of(const std::string& dtype) {
  if (dtype == "Double") return 1e-11;
  if (dtype == "Float") return 1e-4;
  return 0.2;
}

// The pieces of all ranks as one tensor.
struct Whole {
  bool is_there = false;  // the pieces cover it
  bool has_bits = false;  // its hash is that of the whole; of terms that were added it is not
  Print print;
  const Piece *one = nullptr, *other = nullptr;  // copies that are not the same
};

bool is_same(const Print& a, const Print& b, double tolerance, double least = 0) {
  return a.hash == b.hash || (tolerance > 0 && relative_difference(a, b, least) <= tolerance);
}

double longest(const Event& event) {
  double longest = 0;
  for (const auto& [samples, parts] : event.parts)
    for (const auto& piece : parts.pieces) longest = std::max(longest, piece.print.squares);
  return longest;
}

Whole whole_of(const Parts& parts, const Event& of, double tolerance) {
  std::map<std::pair<std::vector<int64_t>, std::vector<int64_t>>, std::vector<const Piece*>> places;
  for (const auto& piece : parts.pieces) places[{piece.start, piece.size}].push_back(&piece);
  Whole whole;
  whole.has_bits = true;
  int64_t covered = 0;
  for (auto& [place, pieces] : places) {
    covered += numbers_of(place.second);
    if (of.kind == Kind::terms) {  // what is nothing but zeros adds nothing, be they + 0 or - 0
      if (pieces.size() > 1) std::erase_if(pieces, [](const Piece* piece) { return piece->print.is_zero(); });
      for (const auto* piece : pieces) whole.print += piece->print;
      whole.has_bits = whole.has_bits && pieces.size() == 1;
      continue;
    }
    whole.print += pieces.front()->print;
    for (const auto* piece : pieces)
      if (!whole.one && !is_same(pieces.front()->print, piece->print, tolerance))
        whole.one = pieces.front(), whole.other = piece;
  }
  whole.is_there = covered == numbers_of(parts.shape);
  if (of.is_of_op && whole.one) whole.is_there = false;
  return whole;
}

// One event's samples in both runs.
class EventComparison {
 public:
  EventComparison(const Key& key, const Event& like, double tolerance, Comparison& result)
      : key_(key), like_(like), tolerance_(tolerance), result_(result) {}

  void check_copies(const Event& event, What what) {
    if (event.is_of_op) return;
    for (const auto& [samples, parts] : event.parts) {
      const auto whole = whole_of(parts, event, tolerance_);
      if (!whole.one) continue;
      ++result_.different;
      note(what, samples, parts.shape, whole.one->print, whole.other->print);
      found_->rank_a = whole.one->rank, found_->rank_b = whole.other->rank;
    }
  }

  void check_numbers(const Event& a, const Event& b) {
    bool any = false;
    // A sample that has next to nothing beside the others, such as the gradient of keys for a query that sees but one,
    // holds rounding alone.
    least_ = std::max(longest(a), longest(b));
    for (const auto& [samples, parts] : a.parts) {
      const auto it = b.parts.find(samples);
      if (it == b.parts.end()) continue;
      any = check_sample(samples, parts, it->second, a, b) || any;
    }
    if (!any && !found_) ++result_.in_parts;
    if (found_) found_->among = compared_;
  }

  const std::optional<Difference>& found() const { return found_; }

 private:
  bool check_sample(const Samples& samples, const Parts& a, const Parts& b, const Event& of_a, const Event& of_b) {
    if (a.shape != b.shape || of_a.dtype != of_b.dtype) {
      if (of_a.is_of_op) return false;
      count(true);
      note(What::shapes, samples, a.shape, {}, {});
      found_->text_a = fmt::format("{} [{}]", of_a.dtype, fmt::join(a.shape, ", "));
      found_->text_b = fmt::format("{} [{}]", of_b.dtype, fmt::join(b.shape, ", "));
      return true;
    }
    const auto mine = whole_of(a, of_a, tolerance_), theirs = whole_of(b, of_b, tolerance_);
    if (!mine.is_there || !theirs.is_there) return false;
    const bool has_bits = mine.has_bits && theirs.has_bits;
    const double tolerance = has_bits ? tolerance_ : std::max(tolerance_, rounding_of(of_a.dtype));
    const bool same = is_same(mine.print, theirs.print, tolerance, least_);
    count(!same);
    result_.rounded += !has_bits;
    if (!same) note(What::numbers, samples, a.shape, mine.print, theirs.print);
    return true;
  }

  void count(bool differs) {
    ++compared_;
    ++result_.compared;
    result_.different += differs;
  }

  void note(What what, const Samples& samples, const std::vector<int64_t>& shape, const Print& a, const Print& b) {
    if (!found_) {
      found_.emplace();
      found_->what = what, found_->key = key_, found_->order = like_.order, found_->dtype = like_.dtype;
      found_->by = like_.by, found_->shape = shape, found_->samples = samples, found_->a = a, found_->b = b;
      found_->relative = relative_difference(a, b);
    }
    ++found_->places;
  }

  const Key& key_;
  const Event& like_;
  const double tolerance_;
  double least_ = 0;
  Comparison& result_;
  int64_t compared_ = 0;
  std::optional<Difference> found_;
};

std::string to_text(const Samples& samples) {
  if (samples.count == 0) return "";
  if (samples.count == 1) return fmt::format(" of sample {}", samples.first);
  return fmt::format(" of samples {} to {}", samples.first, samples.first + samples.count - 1);
}

}  // namespace

Comparison compare(const Events& a, const Events& b, double tolerance) {
  std::set<std::tuple<int64_t, Pass, Order, Key>> keys;
  for (const auto& [key, event] : a.all()) keys.insert({key.step, key.pass, event.order, key});
  for (const auto& [key, event] : b.all())
    if (a.all().count(key) == 0) keys.insert({key.step, key.pass, event.order, key});
  Comparison result;
  for (const auto& [step, pass, order, key] : keys) {
    const auto of_a = a.all().find(key), of_b = b.all().find(key);
    const bool in_a = of_a != a.all().end(), in_b = of_b != b.all().end();
    EventComparison one(key, in_a ? of_a->second : of_b->second, tolerance, result);
    if (in_a) one.check_copies(of_a->second, What::copies_of_a);
    if (in_b) one.check_copies(of_b->second, What::copies_of_b);
    if (in_a && in_b) one.check_numbers(of_a->second, of_b->second);
    result.only_a += in_a && !in_b;
    result.only_b += in_b && !in_a;
    // Whatever the layout, each parameter has its new weights.
    result.parameters_alone += in_a != in_b && (key.op == kUpdates || key.op == kAverages);
    auto& first = result.first;
    if (one.found() && (first.empty() || (first.front().key.step == step && first.back().key.pass != pass)))
      first.push_back(*one.found());
  }
  return result;
}

std::string to_text(const Difference& d, const std::string& a, const std::string& b) {
  std::string text = to_text(d.key) + (d.by.empty() ? "" : ", in " + d.by) + "\n";
  const std::string what = fmt::format("{} [{}]{}", d.dtype, fmt::join(d.shape, ", "), to_text(d.samples));
  if (d.what == What::shapes) return text + fmt::format("  {} has {}, {} has {}\n", a, d.text_a, b, d.text_b);
  if (d.what == What::numbers) {
    text += fmt::format("  {}: {} {:016x}, {} {:016x}", what, a, d.a.hash, b, d.b.hash);
  } else {
    text += fmt::format("  {}, copies in {}: rank {} {:016x}, rank {} {:016x}", what,
                        d.what == What::copies_of_a ? a : b, d.rank_a, d.a.hash, d.rank_b, d.b.hash);
  }
  text += fmt::format("; apart by about {:.1e} of its length", d.relative);
  if (d.samples.count == 1 && d.among > 1) text += fmt::format("; {} of {} samples", d.places, d.among);
  return text + "\n";
}

nlohmann::ordered_json to_json(const Comparison& comparison) {
  nlohmann::ordered_json json{{"same", comparison.is_same()},      {"compared", comparison.compared},
                              {"different", comparison.different}, {"within_rounding", comparison.rounded},
                              {"only_in_a", comparison.only_a},    {"only_in_b", comparison.only_b},
                              {"in_parts", comparison.in_parts},   {"first", nlohmann::ordered_json::array()}};
  for (const auto& d : comparison.first) {
    nlohmann::ordered_json one{{"step", d.key.step},
                               {"pass", name(d.key.pass)},
                               {"unit", d.key.unit},
                               {"op", d.key.op},
                               {"tensor", d.key.tensor}};
    if (!d.by.empty()) one["in"] = d.by;
    if (d.samples.count > 0) one["sample"] = d.samples.first;
    if (d.what == What::shapes) {
      one["a"] = d.text_a, one["b"] = d.text_b;
    } else {
      one["a"] = fmt::format("{:016x}", d.a.hash), one["b"] = fmt::format("{:016x}", d.b.hash);
      one["relative"] = d.relative;
    }
    if (d.rank_a >= 0) {
      one["copies_of"] = d.what == What::copies_of_a ? "a" : "b";
      one["ranks"] = {d.rank_a, d.rank_b};
    }
    json["first"].push_back(std::move(one));
  }
  return json;
}

}  // namespace ditto::diff
