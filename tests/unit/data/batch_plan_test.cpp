#include "core/data/batch_plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include <ditto/error.h>

using ditto::BatchOptions;
using ditto::BatchPlanner;
using ditto::Error;
using ditto::Places;
using ditto::SampleSize;

namespace {

// Sizes in no order, of 16 to 144 tokens.
const std::vector<SampleSize> kSizes{{8, 8}, {16, 8}, {24, 24}, {8, 24}, {2, 16, 16}};

BatchPlanner::Sizes five_sizes() {
  return {[](int64_t place) { return kSizes[static_cast<size_t>(place * place * 7 % 11 % 5)]; },
          [](const SampleSize& size) {
            return std::accumulate(size.begin(), size.end(), int64_t{1}, std::multiplies<>()) / 4;
          }};
}

int64_t tokens(const Places& places) {
  const auto sizes = five_sizes();
  int64_t sum = 0;
  for (const int64_t place : places.list) sum += sizes.tokens(sizes.of(place));
  return sum;
}

BatchPlanner::Plan planned(const BatchOptions& options, int64_t micro_batch, Places step) {
  return BatchPlanner(options, micro_batch, five_sizes()).plan(step);
}

BatchOptions options_of(std::string plan, int64_t tokens = 0, std::vector<std::string> sizes = {}) {
  BatchOptions options;
  options.plan = std::move(plan);
  options.tokens = tokens;
  options.sizes = std::move(sizes);
  return options;
}

std::vector<int64_t> all_places(const BatchPlanner::Plan& plan) {
  std::vector<int64_t> all;
  for (const auto& one : plan.micro_batches) all.insert(all.end(), one.list.begin(), one.list.end());
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace

TEST_CASE("contiguous micro-batches are the step's places in turn, the last one short") {
  const auto plan = planned(options_of("contiguous"), 4, {10, 10});
  REQUIRE(plan.micro_batches.size() == 3);
  CHECK((plan.micro_batches[0] == Places(10, 4)));
  CHECK((plan.micro_batches[1] == Places(14, 4)));
  CHECK((plan.micro_batches[2] == Places(18, 2)));
}

TEST_CASE("buckets hold one size each, no more than they may, and every sample once") {
  for (const int64_t limit : {0, 300}) {
    const auto plan = planned(options_of("buckets", limit), 6, {1000, 64});
    CHECK(all_places(plan) == Places(1000, 64).list);
    CHECK(plan.no_bucket.empty());
    int64_t before = std::numeric_limits<int64_t>::max();
    for (const auto& one : plan.micro_batches) {
      std::set<SampleSize> sizes;
      for (const int64_t place : one.list) sizes.insert(five_sizes().of(place));
      CHECK(sizes.size() == 1);
      CHECK(one.count() <= 6);
      if (limit > 0) CHECK(tokens(one) <= limit);
      CHECK(tokens(one) <= before);  // those side by side cost much the same
      before = tokens(one);
    }
  }
}

TEST_CASE("packs keep within their tokens, hold every sample once, and are filled") {
  const auto plan = planned(options_of("packs", 300), 64, {500, 96});
  CHECK(all_places(plan) == Places(500, 96).list);
  int64_t all = 0;
  for (const auto& one : plan.micro_batches) {
    CHECK(tokens(one) <= 300);
    all += tokens(one);
  }
  // Johnson's bound on first-fit decreasing, over the least number of packs that could hold them.
  const double least = static_cast<double>((all + 299) / 300);
  CHECK(static_cast<double>(plan.micro_batches.size()) <= 11.0 / 9 * least + 1);
}

TEST_CASE("a plan depends on its places and sizes alone") {
  for (const char* kind : {"buckets", "packs"}) {
    const BatchPlanner one(options_of(kind, 300), 8, five_sizes()), other(options_of(kind, 300), 8, five_sizes());
    one.plan({0, 48});
    CHECK((one.plan({48, 48}).micro_batches == other.plan({48, 48}).micro_batches));
  }
}

TEST_CASE("sizes that no bucket takes are left out by name") {
  const auto plan = planned(options_of("buckets", 0, {"8x8", "2x16x16"}), 8, {0, 60});
  CHECK(!plan.no_bucket.empty());
  for (const auto& [place, size] : plan.no_bucket) {
    CHECK(size == five_sizes().of(place));
    CHECK((size != kSizes[0] && size != kSizes[4]));
  }
  CHECK(all_places(plan).size() + plan.no_bucket.size() == 60);
}

TEST_CASE("a sample longer than a pack may be, and a size that is none, are refused") {
  CHECK_THROWS_WITH_AS(planned(options_of("packs", 100), 8, {0, 40}), doctest::Contains("but a sample of"), Error);
  CHECK_THROWS_WITH_AS(planned(options_of("buckets", 0, {"8by8"}), 8, {0, 4}),
                       doctest::Contains("\"8by8\", which is no size"), Error);
  for (const char* wrong : {"8", "8x", "x8", "0x8", "8x8x8x8", "8x8 ", ""})
    CHECK_THROWS_AS(planned(options_of("buckets", 0, {wrong}), 8, {0, 4}), Error);
}

TEST_CASE("samples weigh alike, or as many tokens as they have") {
  auto options = options_of("packs", 400);
  CHECK(BatchPlanner(options, 4, five_sizes()).weight(3) == 1);
  options.weigh_by = "tokens";
  for (const int64_t place : {0, 1, 2, 3, 4})
    CHECK(BatchPlanner(options, 4, five_sizes()).weight(place) == static_cast<double>(tokens(Places({place}))));
}

TEST_CASE("what an epoch is made of is counted, and of a million samples an even part is looked at") {
  struct Sizes final : ditto::Source {
    explicit Sizes(int64_t count) : n(count) {}
    int64_t n;
    mutable int64_t asked = 0, last = 0;
    int64_t size() const override { return n; }
    ditto::TensorSpecs makes() const override { return {{"image", at::kFloat, {1, ditto::kOwnSide, 8}, ""}}; }
    ditto::SampleInfo info(int64_t index) const override {
      ++asked;
      last = index;
      return {{"image", {1, 4 * index < n ? 8 : 16, 8}}};
    }
    ditto::Sample read(int64_t) const override { return {}; }
    std::string fingerprint() const override { return "sizes"; }
  };
  const Sizes few(400), many(1'000'003);
  CHECK(ditto::find_sizes(few, {{16}}).report ==
        "; sizes: 300 of 16, each once an epoch; left out, as batch.sizes does not have them: 100 of 8");
  CHECK(few.asked == 400);
  CHECK(ditto::find_sizes(few, {{16}}).learned == std::vector<ditto::SampleSize>{{16}});
  CHECK_THROWS_WITH_AS(ditto::find_sizes(few, {{24}}),
                       doctest::Contains("none of the sizes of the data's samples: 100 of 8, 300 of 16"), Error);
  CHECK(ditto::find_sizes(many, {}).report ==
        "; sizes, of 16384 samples looked at: 4097 of 8, 12287 of 16, each once an epoch");
  CHECK(many.asked == 16384);
  CHECK(many.last > 999'000);
}
