// What a training's data come to before anything runs: sizes, and what a reader would not expect.
#include <algorithm>

#include <fmt/format.h>

#include "core/assembly/assembly.h"

namespace ditto {

BatchPlanner::Sizes Assembly::sizes(const Loader& loader) {
  return {[&loader](int64_t place) { return loader.size_of(place); },
          [this](const SampleSize& size) { return counter().tokens(size); }};
}

FlopCounter& Assembly::counter() {
  if (!counter_) counter_ = std::make_unique<FlopCounter>(components, *main);
  return *counter_;
}

void Assembly::check(const std::vector<SampleSize>& learned) {
  counter().check(learned.empty() ? std::vector<SampleSize>{{}} : learned);
  if (!sampler || recipe.validate.grid_every == 0) return;
  const auto& one = networks->shape_of_one();
  const bool own_sides = std::find(one.begin(), one.end(), kOwnSide) != one.end();
  const auto sized = own_sides ? nullptr : networks->scheduler->for_size(one);
  (sized ? *sized : *networks->scheduler).time_grid(recipe.sampler_steps);
}

std::vector<std::string> Assembly::notes() const {
  std::vector<std::string> all;
  for (const auto* source : {train_data.get(), validation_data.get()})
    if (source)
      for (const auto& note : source->notes())
        if (std::find(all.begin(), all.end(), "data: " + note) == all.end()) all.push_back("data: " + note);
  for (const auto& name : networks->unused())
    all.push_back("data: \"" + name + "\" is not used: no encoder, objective or model of this recipe takes it");
  const auto held_out = validation_data ? std::min(recipe.validate.samples, validation_data->size()) : kStrata;
  if (held_out < kStrata && recipe.validate.strata == "one")
    all.push_back(
        fmt::format("validation: of {} held-out sample{} each stands at one of {} levels of noise, and the others "
                    "are not seen",
                    held_out, held_out == 1 ? "" : "s", kStrata));
  return all;
}

}  // namespace ditto
