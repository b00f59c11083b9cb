#include "core/data/batch_plan.h"

#include <algorithm>

#include <ditto/error.h>
#include <ditto/text.h>

namespace ditto {

namespace {

SampleSize parsed_size(const std::string& text) {
  auto size = sides_of(text);
  if (size.size() == 2 || size.size() == 3) return size;
  throw Error(ErrorKind::config, "batch.sizes", "has \"" + text + "\", which is no size",
              "write rows x columns, or frames x rows x columns: \"32x48\", \"16x32x32\"");
}

}  // namespace

void BatchOptions::read(OptionReader& option) {
  option("plan", plan,
         "how a step's samples are grouped into micro-batches: \"contiguous\" as they come; \"buckets\": of one size "
         "each; \"packs\": any sizes in one row of tokens, as full as batch.tokens allows")
      .one_of({"contiguous", "buckets", "packs"})
      .changes(Effect::bits);
  option("tokens", tokens,
         "tokens of a micro-batch at most; packs need it; buckets take fewer large samples by it. 0: no limit")
      .at_least(0)
      .changes(Effect::bits);
  option("sizes", sizes,
         "the sizes that are learned from, as [\"32x32\", \"16x32x48\"]; samples of others are left out and counted. "
         "Empty: all");
  option("weigh_by", weigh_by, "what weighs a sample's loss in the mean of a step: all alike, or by its tokens")
      .one_of({"samples", "tokens"});
  if (plan == "packs" && tokens == 0)
    option.reject("tokens", "= 0 says no length for packs", "set batch.tokens, as 4096");
  if (plan == "contiguous" && tokens > 0)
    option.reject("tokens", "limits nothing of plan = \"contiguous\"", "choose \"buckets\" or \"packs\"");
}

std::vector<SampleSize> BatchOptions::taken() const {
  std::vector<SampleSize> taken;
  for (const auto& text : sizes) taken.push_back(parsed_size(text));
  return taken;
}

BatchPlanner::BatchPlanner(const BatchOptions& options, int64_t micro_batch, Sizes sizes)
    : options_(options), micro_batch_(micro_batch), sizes_(std::move(sizes)), taken_(options.taken()) {}

BatchPlanner::Plan BatchPlanner::plan(const Places& step) const {
  Plan plan;
  std::vector<int64_t> places;
  for (const int64_t place : step.list) {
    auto size = taken_.empty() ? SampleSize() : sizes_.of(place);
    if (taken_.empty() || std::find(taken_.begin(), taken_.end(), size) != taken_.end())
      places.push_back(place);
    else
      plan.no_bucket[place] = std::move(size);
  }
  plan.micro_batches = options_.plan == "buckets" ? buckets(places)
                       : options_.plan == "packs" ? packs(places)
                                                  : contiguous(places);
  return plan;
}

double BatchPlanner::weight(int64_t place) const {
  return options_.weigh_by == "tokens" ? static_cast<double>(sizes_.tokens(sizes_.of(place))) : 1.0;
}

int64_t BatchPlanner::tokens_of(int64_t place) const {
  const auto size = sizes_.of(place);
  const int64_t tokens = sizes_.tokens(size);
  if (options_.tokens > 0 && tokens > options_.tokens)
    throw Error(ErrorKind::config, "batch.tokens",
                "= " + std::to_string(options_.tokens) + ", but a sample of " + to_text(size) + " has " +
                    std::to_string(tokens) + " tokens",
                "raise it, or name the sizes to learn from in batch.sizes");
  return tokens;
}

std::vector<Places> BatchPlanner::contiguous(const std::vector<int64_t>& places) const {
  std::vector<Places> all;
  for (const int64_t place : places) {
    if (all.empty() || all.back().count() == micro_batch_) all.emplace_back();
    all.back().list.push_back(place);
  }
  return all;
}

std::vector<Places> BatchPlanner::buckets(const std::vector<int64_t>& places) const {
  std::map<SampleSize, std::vector<int64_t>> by_size;
  for (const int64_t place : places) by_size[sizes_.of(place)].push_back(place);
  std::vector<Places> all;
  for (const auto& [size, members] : by_size) {
    int64_t most = micro_batch_;
    if (options_.tokens > 0) most = std::min(most, options_.tokens / tokens_of(members.front()));
    for (size_t i = 0; i < members.size(); ++i) {
      if (i % static_cast<size_t>(most) == 0) all.emplace_back();
      all.back().list.push_back(members[i]);
    }
  }
  dearest_first(all);
  return all;
}

// First fit, the longest first (D. S. Johnson, 1973: at most 11/9 of the fewest packs, and 6/9 of one).
std::vector<Places> BatchPlanner::packs(const std::vector<int64_t>& places) const {
  std::vector<std::pair<int64_t, int64_t>> longest_first;  // -tokens, place
  for (const int64_t place : places) longest_first.emplace_back(-tokens_of(place), place);
  std::sort(longest_first.begin(), longest_first.end());
  std::vector<Places> all;
  std::vector<int64_t> room;
  for (const auto& [minus_tokens, place] : longest_first) {
    size_t at = 0;
    while (at < all.size() && (room[at] + minus_tokens < 0 || all[at].count() == micro_batch_)) ++at;
    if (at == all.size()) {
      all.emplace_back();
      room.push_back(options_.tokens);
    }
    all[at].list.push_back(place);
    room[at] += minus_tokens;
  }
  // Samples of one size side by side, each in the order of places: a part of the batch.
  for (auto& one : all)
    std::stable_sort(one.list.begin(), one.list.end(), [&](int64_t a, int64_t b) {
      return std::make_pair(sizes_.of(a), a) < std::make_pair(sizes_.of(b), b);
    });
  dearest_first(all);
  return all;
}

// So that those which data ranks run side by side take about as long.
void BatchPlanner::dearest_first(std::vector<Places>& micro_batches) const {
  std::vector<std::pair<double, Places>> priced;
  for (auto& one : micro_batches) {
    double price = 0;
    for (const int64_t place : one.list) price += static_cast<double>(sizes_.tokens(sizes_.of(place)));
    priced.emplace_back(-price, std::move(one));
  }
  std::stable_sort(priced.begin(), priced.end(), [](const auto& a, const auto& b) {
    return std::tie(a.first, a.second.list) < std::tie(b.first, b.second.list);
  });
  for (size_t i = 0; i < priced.size(); ++i) micro_batches[i] = std::move(priced[i].second);
}

}  // namespace ditto
