// Runs of a loader, whole and from any place on: of one source and a blend in a blend, 2 to 1, single, in buckets and
// in packs, on any number of ranks and threads.
#pragma once

#include <doctest/doctest.h>
#include <torch/types.h>

#include <map>
#include <optional>

#include <ditto/data.h>

#include "core/data/batch_job.h"
#include "core/data/batch_plan.h"
#include "core/data/blend.h"
#include "core/data/loader.h"

namespace ditto::test::places {

using ditto::Blend;
using ditto::Loader;
using ditto::Places;

inline constexpr int64_t kSamples = 117, kBatch = 9, kMicroBatch = 3;

// Samples of three sizes, each with a key that no other source has.
class Keyed final : public ditto::Source {
 public:
  Keyed(int64_t samples, int64_t first_key) : samples_(samples), first_key_(first_key) {}
  int64_t size() const override { return samples_; }
  ditto::TensorSpecs makes() const override {
    return {{"image", at::kFloat, {1, ditto::kOwnSide, ditto::kOwnSide}}, {"key", at::kLong, {}}};
  }
  ditto::SampleInfo info(int64_t index) const override {
    const int64_t side = 1 + (index * 7 + first_key_) % 3;
    return {{"image", {1, side, 2}}, {"key", {}}};
  }
  ditto::Sample read(int64_t index) const override {
    ditto::Sample sample;
    sample.place = "sample " + std::to_string(first_key_ + index);
    sample.tensors["image"] = torch::zeros(info(index).at("image"));
    sample.tensors["key"] = torch::scalar_tensor(first_key_ + index, torch::kLong);
    return sample;
  }
  std::string fingerprint() const override { return "keyed"; }

 private:
  int64_t samples_, first_key_;
};

inline std::shared_ptr<const ditto::Source> one_source() { return std::make_shared<Keyed>(kSamples, 0); }

inline std::shared_ptr<const ditto::Source> nested_blend() {
  const auto inner = std::make_shared<Blend>(std::vector<Blend::Part>{{"b", std::make_shared<Keyed>(33, 1000), 2},
                                                                      {"c", std::make_shared<Keyed>(44, 2000), 1}});
  return std::make_shared<Blend>(
      std::vector<Blend::Part>{{"a", std::make_shared<Keyed>(kSamples - 33 - 44, 0), 2}, {"bc", inner, 1}});
}

struct Case {
  std::shared_ptr<const ditto::Source> source;
  bool shuffle;
  std::string plan;
};

using Step = std::vector<std::pair<int64_t, int64_t>>;  // (id, key), micro-batch after micro-batch

inline std::vector<Step> run(const Case& given, int64_t ranks, int64_t threads, int64_t place, int64_t steps) {
  ditto::LoaderOptions options;
  options.shuffle = given.shuffle;
  options.threads = threads;
  ditto::BatchOptions batch;
  batch.plan = given.plan;
  batch.tokens = given.plan == "packs" ? 8 : 0;
  std::vector<std::unique_ptr<Loader>> loaders;
  for (int64_t rank = 0; rank < ranks; ++rank)
    loaders.push_back(std::make_unique<Loader>(given.source, options, 5, nullptr));
  const ditto::BatchPlanner planner(batch, kMicroBatch,
                                    {[&](int64_t at) { return loaders.front()->size_of(at); },
                                     [](const ditto::SampleSize& size) { return size.at(0) * size.at(1); }});
  std::vector<std::vector<Places>> plans, of_rank(static_cast<size_t>(ranks));
  for (int64_t step = 0; step < steps; ++step) {
    plans.push_back(planner.plan({place + step * kBatch, kBatch}).micro_batches);
    for (size_t j = 0; j < plans.back().size(); ++j) of_rank[j % static_cast<size_t>(ranks)].push_back(plans.back()[j]);
  }
  for (size_t rank = 0; rank < loaders.size(); ++rank)
    loaders[rank]->expect([mine = of_rank[rank]](int64_t k) {
      return static_cast<size_t>(k) < mine.size() ? std::optional(mine[static_cast<size_t>(k)]) : std::nullopt;
    });
  std::vector<Step> list;
  for (const auto& plan : plans) {
    Step step;
    for (size_t j = 0; j < plan.size(); ++j) {
      const auto batch_of_sizes = loaders[j % loaders.size()]->next(plan[j]);
      for (const auto& part : batch_of_sizes)
        for (int64_t i = 0; i < part.size(); ++i)
          step.emplace_back(part.ids[static_cast<size_t>(i)], part.at("key")[i].item<int64_t>());
    }
    list.push_back(std::move(step));
  }
  return list;
}

// A cut run goes on as the whole one, for every one of these places.
inline void check_cuts(const Case& given, const std::vector<int64_t>& cuts) {
  constexpr int64_t kAfter = 2;                // steps after the cut
  std::map<int64_t, std::vector<Step>> whole;  // by where the first step began
  for (const int64_t cut : cuts) {
    const int64_t phase = cut % kBatch;
    if (!whole.count(phase)) whole[phase] = run(given, 1, 0, phase, kSamples / kBatch + kAfter);
    for (const int64_t ranks : {1, 2, 4})
      for (const int64_t threads : {0, 2}) {
        const auto again = run(given, ranks, threads, cut, kAfter);
        for (int64_t step = 0; step < kAfter; ++step)
          REQUIRE_MESSAGE(again[static_cast<size_t>(step)] == whole[phase][static_cast<size_t>(cut / kBatch + step)],
                          "cut at " << cut << ", " << ranks << " ranks, " << threads << " threads");
      }
  }
}

inline void check_cuts_of_all(const std::shared_ptr<const ditto::Source>& source, const std::vector<int64_t>& cuts) {
  for (const bool shuffle : {false, true})
    for (const char* plan : {"contiguous", "buckets", "packs"}) {
      CAPTURE(plan);
      CAPTURE(shuffle);
      check_cuts({source, shuffle, plan}, cuts);
    }
}

}  // namespace ditto::test::places
