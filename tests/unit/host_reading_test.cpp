// What a step reads back from its tensors: on a GPU each reading makes the host wait for all that was asked before.
#include "core/train/step.h"

#include <doctest/doctest.h>

#include <set>
#include <string>

#include <ATen/record_function.h>

#include "core/dist/gloo_mesh.h"
#include "core/train/assembly.h"
#include "tests/support/files.h"
#include "tests/unit/ranks.h"

namespace ditto {
namespace {

int64_t readings = 0;

// A number taken from a tensor, or a shape that depends on numbers.
std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& call) {
  static const std::set<std::string> kReads{"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select",
                                            "aten::_unique2", "aten::equal"};
  readings += static_cast<int64_t>(kReads.count(call.name()));
  return nullptr;
}

// Of the third step, by this thread, which computes all of it.
int64_t readings_of(const std::string& model, const std::vector<std::string>& sets) {
  auto recipe = Recipe::read(std::string(DITTO_SOURCE_DIR) + "/configs/" + model + "_tiny.toml", sets);
  Registry registry(std::vector<SearchFolder>{{test::plugin_folder(), "the test"}});
  const GlooMesh mesh(RankInfo{}, {}, std::chrono::seconds(60));
  AssemblyParts parts;
  parts.data = parts.objective = true;
  Assembly assembly(recipe, registry, mesh, parts, {});
  Loader loader(assembly.train_data, recipe.loader, 0, [](const std::string&) {});
  const auto optimizer = assembly.make_optimizer();
  Ema ema(assembly.networks->learned(), recipe.ema);
  TrainingStep training(assembly, loader, *optimizer, ema);
  training.expect(0);
  for (int64_t step = 0; step < 2; ++step) training.run(step);
  readings = 0;
  const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(count).scopes({at::RecordScope::FUNCTION}));
  training.run(2);
  at::removeCallback(handle);
  return readings;
}

TEST_CASE(
    "a step reads two numbers back, its norm and its losses, whatever the depth and the number of micro-batches") {
  // LibTorch's own AdamW for the CPU reads its step's number for every parameter; on a GPU it does not.
  for (const std::string model : {"dit_text", "st_dit"})
    for (const char* set : {"run.batch=8", "model.depth=4", "run.micro_batch=2"}) {
      CAPTURE(model);
      CAPTURE(set);
      CHECK(readings_of(model, {"optimizer.plugin=sgd", "run.batch=8", set}) == 2);
    }
}

}  // namespace
}  // namespace ditto
