#include "core/data/batch_plan.h"

#include <algorithm>
#include <numeric>

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

std::vector<SampleSize> taken_sizes(const BatchOptions& options) {
  std::vector<SampleSize> taken;
  for (const auto& text : options.sizes) taken.push_back(parsed_size(text));
  return taken;
}

BatchPlanner::BatchPlanner(const BatchOptions& options, int64_t micro_batch, Sizes sizes)
    : options_(options), micro_batch_(micro_batch), sizes_(std::move(sizes)), taken_(taken_sizes(options)) {}

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
    if (options_.tokens > 0) tokens_of(place);
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

std::vector<std::vector<size_t>> first_fit_decreasing(const std::vector<int64_t>& lengths, int64_t room, int64_t most) {
  std::vector<size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return lengths[a] > lengths[b]; });
  std::vector<std::vector<size_t>> packs;
  std::vector<int64_t> left;
  for (const size_t i : order) {
    size_t at = 0;
    while (at < packs.size() && (left[at] < lengths[i] || static_cast<int64_t>(packs[at].size()) == most)) ++at;
    if (at == packs.size()) {
      packs.emplace_back();
      left.push_back(room);
    }
    packs[at].push_back(i);
    left[at] -= lengths[i];
  }
  return packs;
}

std::vector<Places> BatchPlanner::packs(const std::vector<int64_t>& places) const {
  auto in_order = places;
  std::sort(in_order.begin(), in_order.end());
  std::vector<int64_t> lengths;
  for (const int64_t place : in_order) lengths.push_back(tokens_of(place));
  std::vector<Places> all;
  for (const auto& pack : first_fit_decreasing(lengths, options_.tokens, micro_batch_)) {
    all.emplace_back();
    for (const size_t i : pack) all.back().list.push_back(in_order[i]);
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
