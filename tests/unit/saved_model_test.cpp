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

std::string saved(const TemporaryFolder& folder, const std::string& recipe) {
  ditto::Layout layout;
  const auto path = folder / "step_00000000";
  ditto::checkpoint::save_weights(path, layout, recipe, kExtra);
  return path;
}

}  // namespace

TEST_CASE("a checkpoint's recipe that says where plugins are is refused, with what to do") {
  const TemporaryFolder folder;
  const auto path = saved(folder, "[run]\nfolder = \"/evil\"\n[plugins]\npath = [\"/evil\"]\n");
  const auto message = error_of(ErrorKind::config, [&] { open_saved(path, {}); });
  CHECK(contains(message, path + "/recipe.toml"));
  for (const auto* part : {"plugins.path", "--plugin-path", "DITTO_PLUGIN_PATH"}) CHECK(contains(message, part));
  // One that was trained before this was refused can still be used.
  CHECK(open_saved(path, {"plugins.path=[]"}).recipe.run.name == "run");
}

TEST_CASE("folders that a training run read and wrote are forgotten with it") {
  const TemporaryFolder folder;
  const auto path = saved(folder, R"(
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
