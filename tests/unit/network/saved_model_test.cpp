// What a checkpoint's recipe may say: which plugins, and never where they or anything else lie.
#include "core/network/saved_model.h"

#include <doctest/doctest.h>

#include "support/files.h"

using ditto::ErrorKind;
using ditto::open_saved;
using namespace ditto::test;

namespace {

const std::map<std::string, std::string> kExtra{
    {"shapes", R"({"x": [1, 8, 8], "out_channels": 1, "classes": 0, "text_width": 0, "data": []})"}};

std::string saved_with(const TemporaryFolder& folder, const std::string& recipe,
                       const std::map<std::string, std::string>& extra = kExtra) {
  ditto::Layout layout;
  const auto path = folder / "step_00000000";
  ditto::checkpoint::save_weights(path, layout, recipe, extra);
  return path;
}

}  // namespace

TEST_CASE("a checkpoint's recipe that says where plugins are is refused, with what to do") {
  const TemporaryFolder folder;
  const auto path = saved_with(folder, "[run]\nfolder = \"/evil\"\n[plugins]\npath = [\"/evil\"]\n");
  const auto message = error_of(ErrorKind::config, [&] { open_saved(path, {}); });
  CHECK(contains(message, path + "/recipe.toml"));
  for (const auto* part : {"plugins.path", "--plugin-path", "DITTO_PLUGIN_PATH"}) CHECK(contains(message, part));
  // One that was trained before this was refused can still be used.
  CHECK(open_saved(path, {"plugins.path=[]"}).recipe.run.name == "run");
}

TEST_CASE("folders that a training run read and wrote are forgotten with it") {
  const TemporaryFolder folder;
  const auto path = saved_with(folder, R"(
[run]
name = "other"
folder = "/evil"
output = "/evil/output"
init_from = "/evil/weights"
[plugins]
kernels = ["cpu", "mine"]
[parallel]
tensor = 4
)");
  const auto recipe = open_saved(path, {}).recipe;
  CHECK(recipe.run.name == "other");
  CHECK(recipe.plugins.kernels == std::vector<std::string>{"cpu", "mine"});
  CHECK(recipe.run.folder.empty());
  CHECK(recipe.run.output.empty());
  CHECK(recipe.run.init_from.empty());
  CHECK(recipe.parallel.tensor == 1);
}

TEST_CASE("another plugin takes no option of the one before but the host's own, whatever is set first") {
  const TemporaryFolder folder;
  const auto path = saved_with(folder, R"(
[scheduler]
plugin = "iddpm"
steps = 300
[sampler]
plugin = "ddim"
steps = 20
eta = 0.5
)");
  for (const auto& sets : {std::vector<std::string>{"sampler.plugin=mine", "sampler.order=2", "scheduler.plugin=other"},
                           {"sampler.order=2", "scheduler.plugin=other", "sampler.plugin=mine"}}) {
    const auto recipe = open_saved(path, sets).recipe;
    CHECK(recipe.sampler.plugin == "mine");
    CHECK(recipe.sampler_steps == 20);
    CHECK(recipe.sampler.options.given.size() == 1);
    CHECK(recipe.sampler.options.given.contains("order"));
    CHECK(recipe.scheduler.options.given.empty());
  }
}

TEST_CASE("guidance of earlier recipes is read as a section, which may be set") {
  const TemporaryFolder folder;
  const auto path = saved_with(folder, "[sampler]\nplugin = \"ddim\"\nguidance = 2.0\nguidance_channels = \"3\"\n");
  const auto scale = [&](const std::vector<std::string>& sets) {
    const auto guidance = open_saved(path, sets).recipe.guidance;
    CHECK(guidance.plugin == "cfg");
    CHECK(std::get<std::string>(guidance.options.given.at("channels").value) == "3");
    return std::get<double>(guidance.options.given.at("scale").value);
  };
  CHECK(scale({}) == 2.0);
  CHECK(scale({"guidance.scale=3.5"}) == 3.5);
  CHECK(scale({"sampler.plugin=heun"}) == 2.0);
  const auto recipe = open_saved(path, {"guidance.plugin=none"}).recipe;
  CHECK(recipe.guidance.plugin == "none");
  CHECK(recipe.guidance.options.given.empty());
  const auto message = error_of(ErrorKind::config, [&] { open_saved(path, {"sampler.guidance=4.0"}); });
  CHECK(contains(message, "stands beside [guidance]"));
}

TEST_CASE("shapes with a number that is no dtype are refused") {
  for (const auto* number : {"-1", "4711", "9999999999"}) {
    const TemporaryFolder folder;
    const auto spec = std::string(R"([{"name": "x", "dtype": )") + number + R"(, "shape": [1], "range": ""}])";
    const auto path = saved_with(folder, "[run]\nname = \"run\"\n",
                                 {{"shapes", R"({"inputs": )" + spec + R"(, "out_channels": 1, "data": []})"}});
    const auto message = error_of(ErrorKind::checkpoint, [&] { open_saved(path, {}); });
    CHECK(contains(message, number));
    CHECK(contains(message, "no dtype"));
  }
}

TEST_CASE("another network that trained stands in the place of the model, without what it once started from") {
  const TemporaryFolder folder;
  const auto path = saved_with(folder, R"(
[model]
plugin = "big"
depth = 12
[network.peer]
plugin = "small"
trains = true
weights = "/gone"
which = "ema"
width = 16
parallel = { tensor = 1 }
[network.teacher]
weights = "/kept"
)");
  const auto own = open_saved(path, {});
  CHECK(own.prefix.empty());
  CHECK(own.recipe.networks.at(0).weights.empty());
  CHECK(own.recipe.networks.at(1).weights == "/kept");
  const auto peer = open_saved(path, {}, "peer");
  CHECK(peer.prefix == "network.peer.");
  CHECK(peer.recipe.model.plugin == "small");
  CHECK(peer.recipe.model.options.given.size() == 1);
  CHECK(peer.recipe.model.options.given.contains("width"));
  CHECK(peer.recipe.networks.size() == 1);
  for (const auto* other : {"teacher", "nobody"})
    CHECK(contains(error_of(ErrorKind::config, [&] { open_saved(path, {}, other); }), other));
}
