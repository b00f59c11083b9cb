// Saving and loading: bits, layouts, retention, and what is refused.
//
// Claim (failures): A checkpoint loads on any layout of ranks, with the same bits; of one that a single rank wrote,
// each of n ranks reads and checks about an n-th, and damage elsewhere does not stop it. Also:
// `checkpoint_layouts_test.cpp`
#include "core/checkpoint/checkpoint.h"

#include <doctest/doctest.h>

#include "core/checkpoint/disk.h"
#include "core/checkpoint/tensor_file.h"
#include "core/formats/tensor/safetensors.h"
#include "support/checkpoint_world.h"
#include "support/files.h"

namespace fs = std::filesystem;
namespace checkpoint = ditto::checkpoint;
using checkpoint::Which;
using ditto::Axis;
using ditto::ErrorKind;
using namespace ditto::test;

namespace {

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& item : fs::directory_iterator(folder)) names.push_back(item.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

// Loads what a world saved as `salt` into every rank of another layout and compares each number.
void check_loads_on(const std::string& path, const Degrees& degrees, uint64_t salt) {
  for (int number = 0; number < FakeMesh(degrees, 0).world_size(); ++number) {
    Rank rank(degrees, number, salt + 1000), expected(degrees, number, salt);
    auto state = rank.state();
    checkpoint::load(path, state);
    CHECK(rank.same_as(expected));
  }
}

std::string load_error(const std::string& path, Rank& rank) {
  return error_of(ErrorKind::checkpoint, [&] {
    auto state = rank.state();
    checkpoint::load(path, state);
  });
}

const std::string kStep = "/step_00000600";

}  // namespace

TEST_CASE("what is loaded has the bits of what was saved, and the rest of the state with it") {
  const TemporaryFolder folder;
  save_world(folder / "c", {}, 1, 600);
  Rank rank({}, 0, 2), expected({}, 0, 1);
  auto state = rank.state();
  checkpoint::load(folder / "c" + kStep, state);
  CHECK(rank.same_as(expected));
  CHECK(state.step == 600);
  CHECK(state.samples == 9600);
  CHECK(state.seed == (0xFFFFFFFFFFFFFFF5ull ^ 1));
  CHECK(state.extra == std::map<std::string, std::string>{{"note", "salt 1"}});
  CHECK(state.recipe_toml == "[run]\nname = \"x\"\n");
}

TEST_CASE("a save holds the numbers of its moment, whatever training does next") {
  const TemporaryFolder folder;
  Rank rank({}, 0, 1), expected({}, 0, 1);
  checkpoint::Saver saver(folder / "c", {}, rank.mesh, {});
  saver.save(rank.state(600));
  for (auto& entry : rank.layout.entries) entry.tensor.detach().zero_();
  for (auto& tensor : rank.ema) tensor.zero_();
  saver.wait();
  Rank loaded({}, 0, 2);
  auto state = loaded.state();
  checkpoint::load(folder / "c" + kStep, state);
  CHECK(loaded.same_as(expected));
}

TEST_CASE("what was saved on one layout loads on any other") {
  const std::vector<Degrees> layouts{{},
                                     {{Axis::tensor, 2}},
                                     {{Axis::tensor, 4}},
                                     {{Axis::shard, 2}},
                                     {{Axis::shard, 4}},
                                     {{Axis::replicate, 2}},
                                     {{Axis::tensor, 2}, {Axis::shard, 2}}};
  for (const Degrees& saved : layouts) {
    const TemporaryFolder folder;
    save_world(folder / "c", saved, 3, 600);
    CHECK(checkpoint::verify(folder / "c" + kStep).empty());
    for (const Degrees& loaded : layouts) check_loads_on(folder / "c" + kStep, loaded, 3);
  }
}

TEST_CASE("of equal copies one rank writes one, so a checkpoint holds every number once") {
  const TemporaryFolder folder;
  const auto bytes_saved = [&](const std::string& name, const Degrees& degrees) {
    save_world(folder / name, degrees, 3, 600);
    uint64_t bytes = 0;
    for (const auto& file : names_in(folder / name + kStep)) {
      if (!file.ends_with(".safetensors")) continue;
      const auto shard = ditto::formats::SafetensorsReader::open(folder / name + kStep + "/" + file);
      for (const auto& entry : shard.entries()) bytes += entry.bytes;
    }
    return bytes;
  };
  const uint64_t whole = bytes_saved("one", {});
  CHECK(whole == 4 * ((6 * 8 + 24 * 8 + 24) * 4 + 8 * 16 * 8 + 4 * 5 * 2 + 8));
  CHECK(bytes_saved("tensor", {{Axis::tensor, 2}}) == whole);
  CHECK(bytes_saved("both", {{Axis::tensor, 2}, {Axis::replicate, 2}}) == whole);
  CHECK(names_in(folder / "both" + kStep) ==
        std::vector<std::string>{"ema-00000.safetensors", "ema-00001.safetensors", "index.json", "manifest.json",
                                 "model-00000.safetensors", "model-00001.safetensors", "optimizer-00000.safetensors",
                                 "optimizer-00001.safetensors", "recipe.toml", "state.json"});
}

TEST_CASE("pieces are named by the global name and their place in the global tensor") {
  const TemporaryFolder folder;
  save_world(folder / "c", {{Axis::tensor, 2}}, 3, 600);
  const auto shard = ditto::read_tensors(folder / "c" + kStep + "/model-00001.safetensors", ErrorKind::checkpoint);
  CHECK(shard.count("blocks.0.qkv.weight[4:8,0:8]") == 1);
  CHECK(shard.count("blocks.0.qkv.weight[12:16,0:8]") == 1);
  CHECK(shard.count("blocks.0.proj.weight[0:8,8:16]") == 1);
  CHECK(shard.count("embed.weight") == 0);
}

TEST_CASE("the last K and every Nth stay") {
  const TemporaryFolder folder;
  Rank rank({}, 0, 1);
  checkpoint::Saver saver(folder / "c", {2, 300}, rank.mesh, {});
  for (int64_t step = 100; step <= 800; step += 100) saver.save(rank.state(step));
  saver.wait();
  CHECK(names_in(folder / "c") ==
        std::vector<std::string>{"latest", "step_00000300", "step_00000600", "step_00000700", "step_00000800"});
  CHECK(fs::read_symlink(folder / "c/latest") == "step_00000800");
  CHECK(checkpoint::find(folder / "c").path == folder / "c/step_00000800");
}

TEST_CASE("a step that is saved again is replaced whole") {
  const TemporaryFolder folder;
  save_world(folder / "c", {{Axis::tensor, 2}}, 1, 600);
  save_world(folder / "c", {}, 2, 600);
  check_loads_on(folder / "c" + kStep, {}, 2);
  CHECK(names_in(folder / "c") == std::vector<std::string>{"latest", "step_00000600"});
}

TEST_CASE("ranks that disagree fail together, in the same words, and leave what was there") {
  const TemporaryFolder folder;
  save_world(folder / "c", {{Axis::tensor, 2}}, 1, 500);
  const Degrees two{{Axis::tensor, 2}};
  const auto errors = as_ranks(2, [&](int number, const ditto::Group& group) {
    Rank rank(two, number, 1);
    if (number == 1) rank.layout.entries[1].tensor = rank.layout.entries[1].tensor.detach().to(torch::kDouble);
    checkpoint::Saver saver(folder / "c", {}, rank.mesh, group);
    saver.save(rank.state(600));
    saver.wait();
  });
  CHECK(contains(errors[0], "ranks disagree on tensor 'blocks.0.qkv.weight': F32 [24, 8] and F64 [24, 8]"));
  CHECK(errors[0] == errors[1]);
  CHECK(names_in(folder / "c") == std::vector<std::string>{"latest", "step_00000500"});
}

TEST_CASE("what unfinished saves left is removed at the start and never loaded") {
  const TemporaryFolder folder;
  save_world(folder / "c", {}, 1, 600);
  fs::copy(folder / "c" + kStep, folder / "c/step_00000700.tmp-4242");
  const auto found = checkpoint::find(folder / "c");
  CHECK(found.path == folder / "c" + kStep);
  CHECK(found.skipped == std::vector<std::string>{"skipped step_00000700.tmp-4242: a save that never ended"});
  Rank rank({}, 0, 1);
  const checkpoint::Saver saver(folder / "c", {}, rank.mesh, {});
  CHECK(names_in(folder / "c") == std::vector<std::string>{"latest", "step_00000600"});
}

TEST_CASE("a path may be a run, its checkpoints, a step, or the hint; the hint may be wrong") {
  const TemporaryFolder folder;
  save_world(folder / "run/checkpoints", {}, 1, 500);
  save_world(folder / "run/checkpoints", {}, 1, 600);
  const std::string newest = folder / "run/checkpoints" + kStep;
  CHECK(checkpoint::resolve(folder / "run").path == newest);
  CHECK(checkpoint::resolve(folder / "run/checkpoints").path == newest);
  CHECK(checkpoint::resolve(newest).path == newest);
  check_loads_on(*checkpoint::resolve(folder / "run/checkpoints/latest").path, {}, 1);

  fs::remove_all(newest);  // latest points to nowhere
  CHECK(checkpoint::find(folder / "run/checkpoints").path == folder / "run/checkpoints/step_00000500");
  const auto found = checkpoint::resolve(folder / "run/checkpoints/latest");
  CHECK(found.path == folder / "run/checkpoints/step_00000500");
  REQUIRE(found.skipped.size() == 1);
  CHECK(contains(found.skipped[0], "points to nothing"));

  fs::remove(folder / "run/checkpoints/latest");
  write_text(folder / "run/checkpoints/latest", "step_00000500\n");  // where there are no links
  check_loads_on(*checkpoint::resolve(folder / "run/checkpoints/latest").path, {}, 1);
  CHECK(contains(error_of(ErrorKind::checkpoint, [&] { checkpoint::resolve(folder / "nowhere"); }), "no such folder"));
  fs::create_directory(folder / "bare");
  CHECK(
      contains(error_of(ErrorKind::checkpoint, [&] { checkpoint::resolve(folder / "bare"); }), "holds no checkpoint"));
  CHECK(!checkpoint::find(folder / "nowhere").path);
}

TEST_CASE("a run that goes on from an older step does not meet its other future") {
  const TemporaryFolder folder;
  for (const int64_t step : {100, 200, 300}) save_world(folder / "c", {}, 1, step);
  CHECK(checkpoint::set_aside_later(folder / "c", 100).size() == 2);
  CHECK(checkpoint::find(folder / "c").path == folder / "c/step_00000100");
  check_loads_on(folder / "c/abandoned-step_00000300", {}, 1);
}

TEST_CASE("another model's checkpoint is refused by the names and shapes of its tensors, and changes nothing") {
  const TemporaryFolder folder;
  save_world(folder / "c", {}, 1, 600);
  const std::string path = folder / "c" + kStep;
  const auto refused = [&](std::vector<ParameterSpec> specs) {
    Rank rank({}, 0, 2, specs), before({}, 0, 2, specs);
    const std::string error = load_error(path, rank);
    CHECK(rank.same_as(before));
    CHECK(contains(error, path));
    return error;
  };
  auto specs = small_model();
  specs[1].shape = {48, 16};
  CHECK(contains(refused(specs), "tensor 'blocks.0.qkv.weight' is F32 [24, 8] there and F32 [48, 16] here"));
  specs = small_model();
  specs[1].dtype = at::kDouble;
  CHECK(contains(refused(specs), "tensor 'blocks.0.qkv.weight' is F32 [24, 8] there and F64 [24, 8] here"));
  specs = small_model();
  specs[0].name = "embed.weigth";
  const std::string error = refused(specs);
  CHECK(contains(error, "tensor 'embed.weigth' is not there (the nearest name is 'embed.weight')"));
  CHECK(contains(error, "use the recipe it was made with"));
  specs = small_model();
  specs.pop_back();
  CHECK(contains(refused(specs), "tensor 'scale' is there, and has no place here"));
}

TEST_CASE("EMA and optimizer state must be there as asked for") {
  const TemporaryFolder folder;
  Rank saved({}, 0, 1);
  auto state = saved.state(600);
  state.ema = nullptr;
  checkpoint::Saver saver(folder / "c", {}, saved.mesh, {});
  saver.save(state);
  saver.wait();
  Rank rank({}, 0, 2);
  CHECK(contains(load_error(folder / "c" + kStep, rank), "has no EMA"));
  CHECK(contains(
      error_of(ErrorKind::checkpoint, [&] { checkpoint::load_weights(folder / "c" + kStep, rank.layout, Which::ema); }),
      "has no EMA"));
  save_world(folder / "d", {}, 1, 600);
  rank.optimizer.tensors.erase("exp_avg_sq");
  rank.optimizer.tensors["momentum"] = rank.optimizer.tensors["exp_avg"];
  const std::string error = load_error(folder / "d" + kStep, rank);
  CHECK(contains(error, "tensors exp_avg, exp_avg_sq and counters step there"));
  CHECK(contains(error, "tensors exp_avg, momentum and counters step here"));
}

TEST_CASE("weights or EMA load alone, on any layout and in the layout's precision") {
  const TemporaryFolder folder;
  const std::vector<ParameterSpec> specs{{"w", {4, 6}, at::kFloat, {{Axis::tensor, {0, {4}}}}}};
  Rank rank({}, 0, 1, specs);
  const torch::Tensor values = torch::arange(24, torch::kFloat).view({4, 6}) / 7;
  rank.layout.entries[0].tensor.detach().copy_(values);
  rank.ema[0].copy_(values + 1);
  checkpoint::Saver saver(folder / "c", {}, rank.mesh, {});
  saver.save(rank.state(600));
  saver.wait();
  auto wide = specs;
  wide[0].dtype = at::kDouble;
  Rank second({{Axis::tensor, 2}}, 1, 2, wide);
  checkpoint::load_weights(folder / "c" + kStep, second.layout, Which::weights);
  CHECK(torch::equal(second.layout.entries[0].tensor.detach(), values.narrow(0, 2, 2).to(torch::kDouble)));
  checkpoint::load_weights(folder / "c" + kStep, second.layout, Which::ema_or_weights);
  CHECK(torch::equal(second.layout.entries[0].tensor.detach(), (values + 1).narrow(0, 2, 2).to(torch::kDouble)));

  checkpoint::save_weights(folder / "w", rank.layout, "[run]\n", {{"from", "a test"}});
  checkpoint::load_weights(folder / "w", second.layout, Which::ema_or_weights);
  CHECK(torch::equal(second.layout.entries[0].tensor.detach(), values.narrow(0, 2, 2).to(torch::kDouble)));
  CHECK(checkpoint::resolve(folder / "w").path == folder / "w");
  const auto info = checkpoint::describe(folder / "w");
  CHECK(info.step == 0);
  CHECK(!info.has_ema());
  CHECK(info.extra.at("from") == "a test");
  fs::create_directory(folder / "other");
  write_text(folder / "other/thesis.txt", "years of work");
  CHECK(contains(error_of(ErrorKind::checkpoint, [&] { checkpoint::save_weights(folder / "other", rank.layout, ""); }),
                 "is there already and is no checkpoint"));
}

TEST_CASE("a checkpoint says what is in it") {
  const TemporaryFolder folder;
  save_world(folder / "c", {{Axis::tensor, 2}}, 1, 600);
  const auto info = checkpoint::describe(folder / "c" + kStep);
  CHECK(info.step == 600);
  CHECK(info.ranks == 2);
  CHECK(info.has_ema());
  CHECK(info.counters == std::map<std::string, double>{{"step", 7}});
  CHECK(info.model.at("blocks.0.qkv.weight").shape == std::vector<int64_t>{24, 8});
  CHECK(info.model.at("blocks.0.qkv.weight").pieces == 6);
  CHECK(info.optimizer.count("exp_avg/embed.weight") == 1);
  const std::string text = checkpoint::to_text(info);
  CHECK(contains(text, "step        600"));
  CHECK(contains(text, "blocks.0.half.weight  BF16 [4, 5]  in 2 pieces"));
  CHECK(contains(checkpoint::to_json(info), "\"parameters\": 413"));
}

TEST_CASE("only folders named as a step are steps") {
  CHECK(checkpoint::step_name(600) == "step_00000600");
  CHECK(checkpoint::step_name(123456789012) == "step_123456789012");
  CHECK(checkpoint::step_of("step_123456789012") == 123456789012);
  for (const char* name : {"step_600", "step_", "step_0000060x", "step_00000600.tmp-1", "step_00000600 ", "latest",
                           "step_99999999999999999999", "abandoned-step_00000600"})
    CHECK(!checkpoint::step_of(name));
}
