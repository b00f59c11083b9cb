#include "core/process/rank.h"

#include <ATen/Parallel.h>
#include <torch/utils.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "core/components/bf16_ways.h"
#include "core/config/numerics.h"
#include "core/plugin/guard.h"
#include "core/plugin/trial.h"
#include "core/process/device.h"
#include "core/process/launch.h"

namespace ditto {

Rank::Rank(const RankInfo& info) : info_(info), watch_(info) {}

int Rank::run(const std::function<int()>& command) {
  try {
    const int code = guarded("", command);
    watch_.finish();
    return code;
  } catch (const Error& error) {
    return watch_.fail(error);
  }
}

void Rank::open(Recipe& recipe, const std::vector<std::string>& plugin_path) {
  registry_.emplace(plugin_folders(plugin_path), try_new_plugins);
  registry_->try_out(plugins_of(recipe));
  transports_ = open_device(recipe, *registry_, info_);
}

void Rank::meet(Recipe& recipe, Facts more) {
  prepare_process(recipe, info_);
  threads_ = torch::get_num_threads();
  mesh_.emplace(info_, degrees(recipe), timeout(recipe), transports_);
  watch_.start(watch_options(recipe));
  recipe_ = recipe.name;
  if (info_.world_size > 1) {
    more.merge(facts_of(recipe, *registry_));
    more["ranks"] = std::to_string(info_.world_size);
    expect_same("recipe, plugins and program", more, ErrorKind::config);
  }
  if (measures_bf16(recipe) && !is_one_number(recipe) && recipe.run.device == "cpu" && asks_for_bf16(recipe))
    measure_ways(recipe, *registry_, mesh_->world());
}

void Rank::go_on(const Recipe& recipe) const {
  if (torch::get_num_threads() != threads_) torch::set_num_threads(threads_);
  if (recipe.run.device != "cpu") choose_kernels(recipe.run.deterministic);
}

void Rank::expect_same(const std::string& topic, const Facts& facts, ErrorKind kind) const {
  if (info_.world_size > 1) ditto::expect_same(*mesh_->store(), info_.rank, topic, facts, kind, recipe_);
}

}  // namespace ditto
