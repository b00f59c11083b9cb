// A restart at place 10^6 of 10^6 indexed samples: how long to the first batch, and how large is what was saved.
// Figures are printed and not judged: they are this machine's.
#include <doctest/doctest.h>
#include <torch/types.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>

#include <ditto/data.h>

#include "core/data/batch_job.h"
#include "core/data/batch_plan.h"
#include "core/data/loader.h"
#include "core/data/shard_writer.h"
#include "core/formats/picture.h"
#include "tests/support/open_plugin.h"

namespace {

namespace fs = std::filesystem;
namespace formats = ditto::formats;

constexpr int64_t kShards = 100, kOfShard = 10'000, kPlace = kShards * kOfShard, kRestartBatch = 32;

// A hundred names of one shard: a million samples of which each has its own place in the index.
struct MillionSamples {
  MillionSamples() {
    std::string name = (fs::temp_directory_path() / "ditto_million_XXXXXX").string();
    path = ::mkdtemp(name.data());
    ditto::PrepareOptions options;
    options.out = path;
    ditto::ShardWriter writer(options);
    for (int64_t i = 0; i < kOfShard; ++i) {
      formats::Picture picture{8, 8, 1, std::vector<std::uint8_t>(64, static_cast<std::uint8_t>(i))};
      const auto png = formats::encode_png(picture);
      const auto label = std::to_string(i % 10);
      writer.add({{"png", png}, {"cls", std::as_bytes(std::span(label))}}, i % 10);
    }
    writer.finish();
    std::ofstream info(path + "/.nv-meta/.info.json"), split(path + "/.nv-meta/split.yaml");
    info << "{\"shard_counts\": {";
    for (int64_t i = 0; i < kShards; ++i) {
      const auto shard = "shard_" + std::to_string(1000 + i).substr(1) + ".tar";
      fs::create_hard_link(path + "/train-000000.tar", path + "/" + shard);
      fs::create_hard_link(path + "/train-000000.tar.idx", path + "/" + shard + ".idx");
      info << (i == 0 ? "" : ", ") << '"' << shard << "\": " << kOfShard;
    }
    info << "}}\n";
    split << "split_parts: {train: ['shard_{000..099}.tar']}\n";
  }
  ~MillionSamples() { fs::remove_all(path); }
  std::string path;
};

double milliseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

// All that a restart does for its data: the set is opened, the loader made, the step planned, the batch read.
double first_batch(const std::string& path, int64_t threads, const std::string& plan) {
  const auto began = std::chrono::steady_clock::now();
  const auto source = ditto::test::make_plugin<ditto::Source>(
      "data", "webdataset", {{"path", path}, {"classes", int64_t{10}}, {"channels", int64_t{1}}},
      {.split = ditto::SplitOf::train, .folder = "/"});
  ditto::LoaderOptions options;
  options.threads = threads;
  ditto::Loader loader(source, options, 1, {});
  ditto::BatchOptions batch;
  batch.plan = plan;
  batch.tokens = plan == "contiguous" ? 0 : 64;
  const ditto::BatchPlanner planner(
      batch, 8, {[&](int64_t place) { return loader.size_of(place); }, [](const ditto::SampleSize&) { return 8; }});
  const auto micro_batches = planner.plan({kPlace, kRestartBatch}).micro_batches;
  loader.expect([&](int64_t k) {
    return static_cast<size_t>(k) < micro_batches.size() ? std::optional(micro_batches[static_cast<size_t>(k)])
                                                         : std::nullopt;
  });
  int64_t samples = 0;
  for (const auto& one : micro_batches) samples += loader.next(one).size();
  const double elapsed = milliseconds_since(began);
  CHECK(source->size() == kPlace);
  CHECK(samples == kRestartBatch);
  return elapsed;
}

}  // namespace

TEST_CASE("a restart at place 10^6 of 10^6 indexed samples") {
  const MillionSamples set;
  std::printf("saved of the data's position: \"%s\", %zu bytes\n", std::to_string(kPlace).c_str(),
              std::to_string(kPlace).size());
  for (const char* plan : {"contiguous", "buckets", "packs"})
    for (const int64_t threads : {0, 2}) {
      double least = 1e9, most = 0;
      for (int run = 0; run < 5; ++run) {
        const double elapsed = first_batch(set.path, threads, plan);
        least = std::min(least, elapsed);
        most = std::max(most, elapsed);
      }
      std::printf("%s, %lld threads: first 32 samples %.1f to %.1f ms after the restart, of five\n", plan,
                  static_cast<long long>(threads), least, most);
    }
}
