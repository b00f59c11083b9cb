#include "core/train/sheets.h"

#include <algorithm>

#include <torch/types.h>

#include "core/data/batch_job.h"
#include "core/data/loader.h"
#include "core/data/names.h"
#include "core/sample/clip.h"
#include "core/sample/grid.h"

namespace ditto {

SampleRequests sheet_requests(Assembly& assembly, const std::function<void(const std::string&)>& warn) {
  const auto& recipe = assembly.recipe;
  SampleRequests requests;
  for (int64_t i = 0; i < recipe.validate.grid; ++i) requests.seeds.push_back(i);
  auto& networks = *assembly.networks;
  const auto wanted = networks.conditions();
  const bool classes_alone =
      std::all_of(wanted.begin(), wanted.end(), [](const auto& spec) { return spec.values > 0; });
  const auto& one = networks.shape_of_one();
  const bool own_sides = std::find(one.begin(), one.end(), kOwnSide) != one.end();
  if (classes_alone)
    for (const auto& spec : wanted)
      requests.conditions[spec.name] = torch::arange(recipe.validate.grid).remainder(spec.values).to(spec.dtype);
  if (classes_alone && !own_sides) return requests;
  const auto& source = assembly.validation_data ? assembly.validation_data : assembly.train_data;
  Loader loader(source, validation_options(recipe.loader), static_cast<uint64_t>(recipe.run.seed), warn);
  const auto count = std::min(recipe.validate.grid, source->size());
  const auto batch = networks.encode(loader.read({0, count})->result().to(assembly.main->ctx->device));
  const auto& part = *batch.begin();  // of several sizes a sheet shows one, the first sample's
  if (own_sides) requests.shape = part.at(names::kClean).sizes().slice(1).vec();
  const auto rows = torch::arange(recipe.validate.grid).remainder(part.size());
  for (const auto& spec : wanted)
    if (!classes_alone) requests.conditions[spec.name] = part.at(spec.name).to(torch::kCPU).index_select(0, rows);
  return requests;
}

std::vector<formats::Picture> draw_sheets(Assembly& assembly, const std::function<void(const std::string&)>& warn) {
  const auto& recipe = assembly.recipe;
  GenerateOptions options;
  options.steps = recipe.sampler_steps;
  options.clip = clip_of(recipe);
  options.batch = recipe.validate.grid;
  options.cache = assembly.cache.get();
  options.failure = GenerateOptions::Failure::together;
  auto& networks = *assembly.networks;
  const auto samples =
      generate(networks, *assembly.sampler, *assembly.guidance, sheet_requests(assembly, warn), options);
  report::SheetOptions look;
  look.columns = static_cast<int>(recipe.log.grid_columns);
  look.min_cell = static_cast<int>(recipe.log.grid_cell);
  torch::NoGradGuard no_grad;
  return report::make_sheets(networks.decode(samples).cpu(), look);
}

}  // namespace ditto
