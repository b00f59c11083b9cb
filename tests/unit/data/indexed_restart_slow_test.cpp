// A restart at place 10^6 of 10^6 indexed samples: how long to the first batch, and how large is what was saved.
// Figures are this machine's: printed, and judged by a bound that no scan of a million samples keeps.
#include <doctest/doctest.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <optional>

#include <nlohmann/json.hpp>

#include <ditto/data.h>

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/manifest.h"
#include "core/data/batch_job.h"
#include "core/data/batch_plan.h"
#include "core/data/loader.h"
#include "core/dataset/shard_writer.h"
#include "core/formats/picture/picture.h"
#include "tests/support/checkpoint_world.h"
#include "tests/support/open_plugin.h"

namespace {

namespace fs = std::filesystem;
namespace formats = ditto::formats;

constexpr int64_t kShards = 100, kOfShard = 10'000, kPlace = kShards * kOfShard, kRestartBatch = 32;

struct Folder {
  Folder() {
    std::string name = (fs::temp_directory_path() / "ditto_million_XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path); }
  std::string path;
};

std::string picture(int64_t i) {
  const auto png = formats::encode_png({8, 8, 1, std::vector<std::uint8_t>(64, static_cast<std::uint8_t>(i))});
  return {reinterpret_cast<const char*>(png.data()), png.size()};
}

// Of three sizes.
std::string latent(int64_t i) {
  const auto bytes =
      torch::jit::pickle_save(torch::full({4, 6 + 2 * (i % 3), 10 - 2 * (i % 3)}, 0.01 * static_cast<double>(i % 100)));
  return {bytes.data(), bytes.size()};
}

// A hundred copies of one shard: a million samples of which each has its own place in the index. (Names of one file are
// refused as a shard that is named twice.)
struct MillionSamples : Folder {
  MillionSamples(const char* extension, std::string (*sample)(int64_t)) {
    ditto::PrepareOptions options;
    options.out = path;
    ditto::ShardWriter writer(options);
    for (int64_t i = 0; i < kOfShard; ++i) {
      const auto image = sample(i), label = std::to_string(i % 10);
      writer.add({{extension, std::as_bytes(std::span(image))}, {"cls", std::as_bytes(std::span(label))}}, i % 10);
    }
    writer.finish();
    std::ofstream info(path + "/.nv-meta/.info.json"), split(path + "/.nv-meta/split.yaml");
    info << "{\"shard_counts\": {";
    for (int64_t i = 0; i < kShards; ++i) {
      const auto shard = "shard_" + std::to_string(1000 + i).substr(1) + ".tar";
      fs::copy_file(path + "/train-000000.tar", path + "/" + shard);
      fs::create_hard_link(path + "/train-000000.tar.idx", path + "/" + shard + ".idx");
      info << (i == 0 ? "" : ", ") << '"' << shard << "\": " << kOfShard;
    }
    info << "}}\n";
    split << "split_parts: {train: ['shard_{000..099}.tar']}\n";
  }
};

// A million rows of one picture, to be brought to one of three sizes; their columns say how large it is.
struct MillionRows : Folder {
  MillionRows() {
    std::ofstream(path + "/a.png") << picture(1);
    std::ofstream table(path + "/table.csv");
    table << "path,kind,height,width\n";
    for (int64_t i = 0; i < kPlace; ++i)
      table << "a.png," << i % 10 << (i % 3 == 0 ? ",64,64\n" : i % 3 == 1 ? ",480,640\n" : ",1024,768\n");
  }
};

double milliseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

using Sides = std::vector<int64_t>;
using Strings = std::vector<std::string>;

// All that a restart does for its data: the set is opened, the loader made, the step planned, the batch read.
double first_batch(const std::string& plugin, const std::map<std::string, ditto::OptionValue>& data,
                   const std::string& folder, int64_t threads, const std::string& plan) {
  const auto began = std::chrono::steady_clock::now();
  const auto source =
      ditto::test::make_plugin<ditto::Source>("data", plugin, data, {.split = ditto::SplitOf::train, .folder = folder});
  ditto::LoaderOptions options;
  options.threads = threads;
  ditto::Loader loader(source, options, 1, {});
  ditto::BatchOptions batch;
  batch.plan = plan;
  batch.tokens = plan == "contiguous" ? 0 : 256;
  const ditto::BatchPlanner planner(batch, 8,
                                    {[&](int64_t place) { return loader.size_of(place); },
                                     [](const ditto::SampleSize& size) {
                                       return std::accumulate(size.begin(), size.end(), int64_t{1},
                                                              std::multiplies<>());
                                     }});
  const auto micro_batches = planner.plan({kPlace, kRestartBatch}).micro_batches;
  loader.expect([&](int64_t k) {
    return static_cast<size_t>(k) < micro_batches.size() ? std::optional(micro_batches[static_cast<size_t>(k)])
                                                         : std::nullopt;
  });
  int64_t samples = 0;
  for (const auto& one : micro_batches) {
    const auto read = loader.next(one);
    samples += read.size();
    CHECK(std::count(read.weights.begin(), read.weights.end(), 1.0) == read.size());
  }
  const double elapsed = milliseconds_since(began);
  CHECK(source->size() == kPlace);
  CHECK(samples == kRestartBatch);
  return elapsed;
}

void time_restarts(const std::string& name, const std::string& plugin,
                   const std::map<std::string, ditto::OptionValue>& data, const std::string& folder,
                   const Strings& plans, double bound) {
  for (const auto& plan : plans)
    for (const int64_t threads : {0, 2}) {
      double least = 1e9, most = 0;
      for (int run = 0; run < 5; ++run) {
        const double elapsed = first_batch(plugin, data, folder, threads, plan);
        CHECK(elapsed < bound);
        least = std::min(least, elapsed);
        most = std::max(most, elapsed);
      }
      std::printf("%s, %s, %lld threads: first 32 samples %.1f to %.1f ms after the restart, of five\n", name.c_str(),
                  plan.c_str(), static_cast<long long>(threads), least, most);
    }
}

}  // namespace

TEST_CASE("what a checkpoint saves of a position in the data, at place 10^6, is a number of 7 bytes") {
  const auto saved_at = [](int64_t place) {
    const Folder folder;
    ditto::test::Rank rank({}, 0, 1);
    auto state = rank.state(1);
    state.samples = place;
    ditto::checkpoint::Saver saver(folder.path + "/c", {}, rank.mesh, {});
    saver.save(state);
    saver.wait();
    std::ifstream file(folder.path + "/c/step_00000001/" + ditto::checkpoint::kStateFile);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const auto at_start = saved_at(0), at_place = saved_at(kPlace);
  CHECK(nlohmann::json::parse(at_place).at("samples").get<int64_t>() == kPlace);
  CHECK(at_place.size() == at_start.size() + 6);  // "1000000" for "0"
}

bool has_room(const char* what) {
  if (fs::space(fs::temp_directory_path()).available > std::uintmax_t{6} << 30) return true;
  std::printf("not run: %s: 6 GB of temporary files\n", what);
  return false;
}

// Milliseconds that a loaded machine stays below too; a look at each sample of the million takes longer.
constexpr double kIndexed = 500, kReadWhole = 10'000;

TEST_CASE("a restart at place 10^6 of 10^6 indexed samples") {
  if (!has_room("a restart at place 10^6 of 10^6 indexed samples")) return;
  const MillionSamples set("png", picture);
  time_restarts("pictures of one size", "webdataset",
                {{"path", set.path}, {"classes", int64_t{10}}, {"channels", int64_t{1}}}, "/",
                {"contiguous", "buckets", "packs"}, kIndexed);
}

TEST_CASE("a restart at place 10^6 of 10^6 indexed samples of their own sizes") {
  if (!has_room("a restart at place 10^6 of 10^6 indexed samples of their own sizes")) return;
  const MillionSamples set("pth", latent);
  time_restarts("latents of three sizes", "webdataset",
                {{"path", set.path}, {"classes", int64_t{10}}, {"image", Strings{"pth"}}, {"latent", Sides{4, -1, -1}}},
                "/", {"buckets", "packs"}, kIndexed);
}

TEST_CASE("a restart at place 10^6 of a table of 10^6 rows, to sizes of their own") {
  const MillionRows rows;
  time_restarts("a table's pictures to three sizes", "table",
                {{"table", std::string("table.csv")},
                 {"label", std::string("kind")},
                 {"classes", int64_t{10}},
                 {"channels", int64_t{1}},
                 {"height", std::string("height")},
                 {"width", std::string("width")},
                 {"sizes", Strings{"8x8", "6x10", "10x6"}}},
                rows.path, {"buckets", "packs"}, kReadWhole);
}
