#include "core/plan/paper.h"

#include <algorithm>

#include "core/data/batch_plan.h"
#include "core/network/flops.h"

namespace ditto {

Recipe on_paper(Recipe recipe) {
  recipe.run.device = "meta";
  recipe.validate.every = 0;
  return recipe;
}

LargestSize largest_size(Assembly& assembly) {
  const auto& recipe = assembly.recipe;
  const auto own_sides = [](const TensorSpec& spec) {
    return static_cast<size_t>(std::count(spec.shape.begin(), spec.shape.end(), kOwnSide));
  };
  const auto specs = assembly.train_data->makes();
  const auto own = std::find_if(specs.begin(), specs.end(), own_sides);
  LargestSize largest;
  if (own == specs.end()) return largest;
  FlopCounter counter(assembly.components, *assembly.main);
  for (const auto& size : taken_sizes(recipe.batch))
    if (size.size() == own_sides(*own))
      if (const int64_t tokens = counter.tokens(size); tokens > largest.tokens) largest = {size, tokens};
  if (largest.tokens > 0) return largest;
  throw Error(ErrorKind::config, recipe.data.where, "makes " + to_text(*own) + " of each sample's own size",
              "a dry run counts with the largest of batch.sizes: name them there, or give the data one size");
}

}  // namespace ditto
