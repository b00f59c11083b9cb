// Checkpoints between layouts: cuts that follow one another on one dim, uneven and empty pieces, states in blocks,
// stages of a pipeline; and who writes and reads what.
#include <doctest/doctest.h>

#include "core/assembly/resume.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/disk.h"
#include "core/checkpoint/index.h"
#include "core/checkpoint/reader.h"
#include "core/train/step.h"
#include "support/checkpoint_world.h"
#include "support/files.h"

namespace checkpoint = ditto::checkpoint;
using ditto::Axis;
using ditto::ErrorKind;
using namespace ditto::test;

namespace {

constexpr int64_t kBlock = 4;

std::vector<ParameterSpec> composed_model() {
  return {
      {"embed.weight", {7, 6}, at::kFloat, {{Axis::shard, {0}}}},
      // parts cut by heads, and what is left of them cut again
      {"blocks.0.qkv.weight", {24, 6}, at::kFloat, {{Axis::tensor, {0, {8, 8, 8}}}, {Axis::shard, {0}}}, 0},
      {"blocks.0.qkv.bias", {24}, at::kFloat, {{Axis::tensor, {0, {8, 8, 8}}}, {Axis::shard, {0}}}, 0},
      // grouped-query heads of width 2: parts of unequal lengths, uneven pieces of whole heads
      {"blocks.1.qkv.weight", {14, 5}, at::kDouble, {{Axis::tensor, {0, {10, 2, 2}, 0, 1, 2}}, {Axis::shard, {1}}}, 1},
      // three cuts of one dim
      {"blocks.1.mixed.weight", {13, 3}, at::kFloat, {{Axis::tensor, {0}}, {Axis::expert, {0}}, {Axis::shard, {0}}}, 1},
      {"blocks.0.experts.up", {4, 6, 5}, at::kFloat, {{Axis::expert, {0}}, {Axis::tensor, {1}}, {Axis::shard, {0}}}, 0},
      // fewer rows than shards
      {"blocks.2.few", {2, 3}, at::kBFloat16, {{Axis::shard, {0}}}, 2},
      {"blocks.3.one", {1}, at::kFloat, {{Axis::shard, {0}}}, 3},
      // blocks along the last dim, the last one shorter
      {"blocks.0.coded", {6, 18}, at::kFloat, {{Axis::tensor, {0}}, {Axis::shard, {0}}}, 0, kBlock},
      {"blocks.1.coded", {3, 32}, at::kFloat, {{Axis::tensor, {1}}, {Axis::shard, {0}}}, 1, kBlock},
      {"head.coded",
       {5, 22},
       at::kFloat,
       {{Axis::tensor, {1, {16, 6}, 0, 1, kBlock}}, {Axis::shard, {1, {}, 0, 1, kBlock}}},
       -1,
       kBlock},
      {"scale", {}, at::kDouble},
  };
}

const std::vector<Degrees> kLayouts{
    {},
    {{Axis::tensor, 2}},
    {{Axis::shard, 3}},
    {{Axis::shard, 8}},
    {{Axis::tensor, 2}, {Axis::shard, 3}},
    {{Axis::replicate, 2}, {Axis::shard, 2}},
    {{Axis::expert, 2}, {Axis::shard, 2}},
    {{Axis::pipeline, 2}},
    {{Axis::pipeline, 2}, {Axis::tensor, 2}, {Axis::shard, 2}},
    {{Axis::pipeline, 4}, {Axis::context, 2}},  // a stage without a matrix, one without a state in blocks
    {{Axis::tensor, 2}, {Axis::expert, 2}, {Axis::shard, 2}, {Axis::context, 2}},
};

int ranks(const Degrees& degrees) { return FakeMesh(degrees, 0).world_size(); }

const std::string kLayoutsStep = "/step_00000600";

}  // namespace

TEST_CASE("any of 11 layouts loads, bit for bit, what any other saved") {
  const auto specs = composed_model();
  for (const Degrees& saved : kLayouts) {
    const TemporaryFolder folder;
    save_world(folder / "c", saved, 3, 600, specs);
    CHECK(checkpoint::verify(folder / "c" + kLayoutsStep).empty());
    for (const Degrees& loaded : kLayouts) {
      for (int number = 0; number < ranks(loaded); ++number) {
        Rank rank(loaded, number, 4, specs), expected(loaded, number, 3, specs);
        auto state = rank.state();
        checkpoint::load(folder / "c" + kLayoutsStep, state);
        CHECK(rank.same_as(expected));
        CHECK(state.step == 600);
      }
    }
  }
}

TEST_CASE("a checkpoint holds every number once, whatever wrote it") {
  const auto specs = composed_model();
  for (const Degrees& saved : kLayouts) {
    const TemporaryFolder folder;
    save_world(folder / "c", saved, 3, 600, specs);
    const checkpoint::Reader reader(folder / "c" + kLayoutsStep);
    size_t tensors = 0;
    for (const char* section : checkpoint::kSections) {
      for (const auto& [name, tensor] : reader.index().section(section)) {
        CAPTURE(name);
        int64_t held = 0;
        for (const auto& piece : tensor.pieces) held += checkpoint::numbers(piece.box.size);
        CHECK(held == checkpoint::numbers(tensor.shape));
        ++tensors;
      }
    }
    CHECK(tensors == 4 * specs.size());  // weights, EMA, and two states of each
  }
}

TEST_CASE("a rank writes the rectangles it holds and no other") {
  const Degrees degrees{{Axis::tensor, 2}, {Axis::shard, 3}};
  const TemporaryFolder folder;
  save_world(folder / "c", degrees, 3, 600, composed_model());
  const checkpoint::Reader reader(folder / "c" + kLayoutsStep);
  for (int number = 0; number < ranks(degrees); ++number) {
    const Rank rank(degrees, number, 3, composed_model());
    char file[32];
    std::snprintf(file, sizeof file, "model-%05d.safetensors", number);
    for (const auto& entry : rank.layout.entries) {
      CAPTURE(entry.name);
      std::vector<checkpoint::Box> written, held;
      for (const auto& piece : reader.index().section(checkpoint::kModel).at(entry.name).pieces)
        if (piece.file == file) written.push_back(piece.box);
      for (const auto& slice : entry.slices()) held.push_back({slice.global_start, slice.size});
      const bool is_copy = entry.is_copy(Axis::tensor) ? rank.mesh.index(Axis::tensor) > 0 : false;
      const bool is_shard_copy = entry.is_copy(Axis::shard) && rank.mesh.index(Axis::shard) > 0;
      CHECK((is_copy || is_shard_copy ? written.empty() : written == held));
    }
  }
}

TEST_CASE("a rank reads no file that holds none of its numbers") {
  const Degrees degrees{{Axis::shard, 3}};
  const std::vector<ParameterSpec> specs{{"w", {6, 4}, at::kFloat, {{Axis::shard, {0}}}}};
  const TemporaryFolder folder;
  save_world(folder / "c", degrees, 3, 600, specs);
  for (const char* section : {"model", "ema", "optimizer"})
    std::filesystem::remove(folder / "c" + kLayoutsStep + "/" + section + "-00001.safetensors");
  for (const int number : {0, 2}) {
    Rank rank(degrees, number, 4, specs), expected(degrees, number, 3, specs);
    auto state = rank.state();
    checkpoint::load(folder / "c" + kLayoutsStep, state);
    CHECK(rank.same_as(expected));
  }
  Rank rank(degrees, 1, 4, specs);
  const auto error = error_of(ErrorKind::checkpoint, [&] {
    auto state = rank.state();
    checkpoint::load(folder / "c" + kLayoutsStep, state);
  });
  CHECK(error.find("-00001.safetensors") != std::string::npos);
}

// What one rank saved, and chunk by chunk of its file, who is stopped when a byte there is flipped.
class OneRanksFile {
 public:
  static constexpr int kRanks = 4;

  OneRanksFile() {
    auto whole = held(0, 1);
    for (auto& entry : whole.entries) entry.tensor.copy_(torch::arange(entry.tensor.numel()).view(entry.full_shape));
    checkpoint::save_weights(path(), whole, "[run]\n");
    bytes_ = std::filesystem::file_size(file());
  }
  std::string path() const { return folder_ / "c"; }
  std::string file() const { return path() + "/model-00000.safetensors"; }
  size_t chunks() const { return (bytes_ + checkpoint::kChunkBytes - 1) / checkpoint::kChunkBytes; }

  // Rows of one tensor, columns of the other: a run of 2 MiB, and two runs of 2 MiB.
  static ditto::Layout held(int number, int count) {
    ditto::Layout layout;
    const auto add = [&](const std::string& name, std::vector<int64_t> shape, int64_t dim) {
      ditto::LayoutEntry entry;
      entry.name = name;
      entry.full_shape = shape;
      if (count > 1) entry.cuts[Axis::shard] = {dim, {shape[static_cast<size_t>(dim)]}, number, count};
      entry.tensor = torch::zeros(ditto::local_shape(entry));
      layout.entries.push_back(std::move(entry));
    };
    add("rows", {1024, 2048}, 0);
    add("columns", {2, 2 << 20}, 1);
    return layout;
  }

  void flip(size_t chunk) const {
    std::fstream stream(file(), std::ios::binary | std::ios::in | std::ios::out);
    const auto at = static_cast<std::streamoff>(std::min(chunk * checkpoint::kChunkBytes + 12345, bytes_ - 1));
    stream.seekg(at);
    const char changed = static_cast<char>(stream.get() ^ 1);
    stream.seekp(at);
    stream.put(changed);
  }

  // The error of that rank's load; empty: it has the numbers that were saved.
  std::string load(int number) const {
    auto layout = held(number, kRanks);
    const std::string error =
        error_of(ErrorKind::checkpoint, [&] { checkpoint::load_weights(path(), layout, checkpoint::Which::weights); });
    for (const auto& entry : layout.entries) {
      const auto saved = torch::arange(checkpoint::numbers(entry.full_shape), torch::kFloat).view(entry.full_shape);
      const auto expected = ditto::cut(saved, entry.cuts.at(Axis::shard));
      CHECK(torch::equal(entry.tensor, error.empty() ? expected : torch::zeros_like(expected)));
    }
    return error;
  }

 private:
  TemporaryFolder folder_;
  size_t bytes_ = 0;
};

TEST_CASE("of a file that one rank wrote, each of n ranks reads an n-th, and damage elsewhere does not stop it") {
  const OneRanksFile saved;
  REQUIRE(saved.chunks() == 25);  // 8 MiB of rows, 16 MiB of columns, a header
  std::vector<size_t> read(OneRanksFile::kRanks);
  for (size_t chunk = 0; chunk < saved.chunks(); ++chunk) {
    saved.flip(chunk);
    size_t stopped = 0;
    for (int number = 0; number < OneRanksFile::kRanks; ++number) {
      const std::string error = saved.load(number);
      if (error.empty()) continue;
      CHECK_MESSAGE(contains(error, saved.file() + ": is damaged: the checksum of its bytes " +
                                        std::to_string(chunk * checkpoint::kChunkBytes) + " to "),
                    error);
      ++read[static_cast<size_t>(number)];
      ++stopped;
    }
    CHECK(stopped >= 1);
    if (chunk == 0) CHECK(stopped == OneRanksFile::kRanks);  // the header
    CHECK(checkpoint::verify(saved.path()).size() == 1);
    saved.flip(chunk);
  }
  CHECK(checkpoint::verify(saved.path()).empty());
  for (const size_t chunks : read) {
    MESSAGE("a rank of 4 read " << chunks << " of 25 chunks");
    CHECK(chunks >= 6);          // a fourth
    CHECK(chunks <= 6 + 3 + 1);  // one more for each of its three runs of bytes, and the header
  }
}

TEST_CASE("ranks that verify a checkpoint together share its bytes and come to one answer") {
  const OneRanksFile saved;
  const auto together = [&](int count) {
    std::vector<std::vector<std::string>> answers(static_cast<size_t>(count));
    const auto errors = as_ranks(count, [&](int number, const ditto::Group& group) {
      answers[static_cast<size_t>(number)] = checkpoint::verify(saved.path(), group);
    });
    for (const auto& error : errors) CHECK(error.empty());
    for (const auto& answer : answers) CHECK(answer == answers[0]);
    return answers[0];
  };
  CHECK(together(3).empty());
  for (const size_t chunk : {0, 1, 2, 11, 24}) {
    saved.flip(chunk);
    const auto answer = together(3);
    REQUIRE(answer.size() == 1);
    CHECK_MESSAGE(contains(answer[0], saved.file() + ": is damaged"), answer[0]);
    saved.flip(chunk);
  }
  std::filesystem::remove(saved.file());
  CHECK(together(3).size() == 1);
}

TEST_CASE("ranks find the same step, the newest that is whole for all of them") {
  const Degrees two{{Axis::shard, 2}};
  const TemporaryFolder folder;
  for (const int64_t step : {400, 500, 600}) save_world(folder / "c", two, 3, step);
  std::filesystem::remove(folder / "c" + kLayoutsStep + "/ema-00001.safetensors");
  std::vector<checkpoint::Found> found(2);
  const auto errors = as_ranks(2, [&](int number, const ditto::Group& group) {
    found[static_cast<size_t>(number)] = checkpoint::resolve(folder / "c", group);
  });
  CHECK(errors == std::vector<std::string>(2));
  for (const auto& one : found) {
    CHECK(one.path == folder / "c/step_00000500");
    CHECK(one.skipped == found[0].skipped);
    REQUIRE(one.skipped.size() == 1);
    CHECK(contains(one.skipped[0], "skipped step_00000600: "));
    CHECK(contains(one.skipped[0], "ema-00001.safetensors: is missing"));
  }
}

TEST_CASE(
    "a state of a whole parameter, which one rank keeps, and counters that are no whole numbers load on any layout") {
  const std::vector<ParameterSpec> specs{
      {"a", {6, 4}, at::kFloat, {{Axis::shard, {0}}}}, {"b", {5, 3}, at::kFloat, {{Axis::shard, {0}}}}, {"plain", {4}}};
  // A number a row, of the parameters that this one of `ranks` has whole.
  const auto keep = [&](Rank& rank, int number, int ranks, double value) {
    for (size_t i = 0; i < specs.size(); ++i) {
      const bool here = specs[i].cuts.empty() || static_cast<int>(i) % ranks == number;
      const auto rows = torch::arange(specs[i].shape[0], at::kFloat) * value + static_cast<double>(i);
      rank.optimizer.tensors["rows"].push_back(here ? rows : torch::Tensor());
    }
    rank.optimizer.wholes = {"rows"};
    rank.optimizer.numbers["weight_sum"] = value;
  };
  const TemporaryFolder folder;
  for (const int from : {1, 3}) {
    const std::string path = folder / ("c" + std::to_string(from));
    const auto errors = ditto::test::as_ranks(from, [&](int number, const ditto::Group& group) {
      Rank rank({{Axis::shard, from}}, number, 1, specs);
      keep(rank, number, from, 0.1);
      ditto::checkpoint::Saver saver(path, {}, rank.mesh, group);
      saver.save(rank.state(600));
      saver.wait();
    });
    for (const auto& error : errors) CHECK(error.empty());
    for (const int to : {1, 2, 4})
      for (int number = 0; number < to; ++number) {
        Rank rank({{Axis::shard, to}}, number, 2, specs), expected({{Axis::shard, to}}, number, 1, specs);
        keep(rank, number, to, 7), keep(expected, number, to, 0.1);
        auto state = rank.state();
        ditto::checkpoint::load(path + kLayoutsStep, state);
        CHECK(rank.same_as(expected));
      }
  }
}

TEST_CASE("a cut through a block of state is refused with its numbers") {
  ditto::LayoutEntry entry;
  entry.name = "w";
  entry.full_shape = {3, 32};
  const auto refused = [&](const ditto::Cut& cut) {
    entry.cuts = {{Axis::tensor, cut}};
    return error_of(ErrorKind::config, [&] { entry.in_blocks(8); });
  };
  CHECK(refused({1, {32}, 0, 8}).find("32 numbers in 8 pieces") != std::string::npos);
  CHECK(refused({1, {32}, 0, 3}).find("tensor") != std::string::npos);
  CHECK_FALSE(refused({1, {12, 20}, 0, 2, 8}).empty());  // the second part starts within a block
  CHECK_FALSE(refused({1, {32}, 0, 4, 12}).empty());     // by whole heads of 12
  entry.cuts = {{Axis::tensor, {1, {32}, 1, 3, 8}}};
  CHECK(ditto::local_shape(entry) == std::vector<int64_t>{3, 8});
  CHECK(ditto::local_shape(entry.in_blocks(8)) == std::vector<int64_t>{3, 1});
  entry.cuts = {{Axis::tensor, {0, {3}, 1, 2}}};
  CHECK(ditto::local_shape(entry.in_blocks(8)) == std::vector<int64_t>{2, 4});
}

TEST_CASE("a step's samples are shared out whole, none twice, on any number of data ranks") {
  for (const int64_t micro_batch : {0, 1, 3, 4, 50}) {
    ditto::RunOptions run;
    run.batch = 10;
    run.micro_batch = micro_batch;
    for (const int count : {1, 2, 3, 4, 7, 16}) {
      for (const Axis axis : {Axis::replicate, Axis::shard, Axis::expert}) {
        std::vector<int64_t> seen;
        for (int number = 0; number < count; ++number) {
          const FakeMesh mesh({{axis, count}}, number);
          const ditto::StepShares shares(run, {}, mesh, {});
          for (const int64_t step : {5, 6}) {
            const auto share = shares.step(step, step * run.batch, ditto::Phase::train);
            for (int64_t accumulation = 0; accumulation < share.plan.mine; ++accumulation) {
              const auto& places = shares.mine(share, accumulation).list;
              seen.insert(seen.end(), places.begin(), places.end());
            }
          }
        }
        std::sort(seen.begin(), seen.end());
        std::vector<int64_t> expected(20);
        std::iota(expected.begin(), expected.end(), 50);
        CHECK(seen == expected);
      }
    }
  }
}

TEST_CASE("a resume may change all of [parallel], its earlier strategies' options too, and says what that costs") {
  const std::string before = "[parallel]\nshard = 4\nshard_plugin = \"fsdp\"\nprefetch = true\n";
  const auto saved = ditto::formats::parse_toml(before, "a");
  const auto now = ditto::formats::parse_toml("[parallel]\ntensor = 2\nsequence = true\ntimeout_s = 5.0\n", "b");
  auto recipe = ditto::Recipe::parse("[parallel]\ntensor = 2\n", "b");
  recipe.resolve("parallel", {}, {{"sequence", "", true, true, "", true, ditto::Effect::bits}});
  ditto::Registry registry;
  const auto lines = ditto::compare_recipes(saved, now, ditto::effects_of(recipe, before, registry), {});
  CHECK(lines.size() == 6);
  const auto prefetch =
      std::find_if(lines.begin(), lines.end(), [](const auto& line) { return line.starts_with("parallel.prefetch"); });
  REQUIRE(prefetch != lines.end());
  CHECK(prefetch->find("bit for bit with the same micro-batches") != std::string::npos);
}

TEST_CASE("an option that nobody declares any more has to be allowed") {
  const std::string before = "[parallel]\nshard = 4\nshard_plugin = \"gone\"\nits_option = 3\n";
  const auto saved = ditto::formats::parse_toml(before, "a");
  const auto now = ditto::formats::parse_toml("[parallel]\nshard = 4\nshard_plugin = \"gone\"\n", "b");
  ditto::Registry registry;
  const auto effects = ditto::effects_of(ditto::Recipe::parse("", "b"), before, registry);
  CHECK_THROWS_WITH_AS(ditto::compare_recipes(saved, now, effects, {}),
                       doctest::Contains("--allow-change parallel.its_option"), ditto::Error);
  CHECK(ditto::compare_recipes(saved, now, effects, {"parallel.its_option"}).size() == 1);
}
