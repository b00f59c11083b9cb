// A recipe to begin with, for pictures in shards and for this machine: `ditto init`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/config/recipe.h"
#include "core/plan/dry_run.h"
#include "core/plugin/registry.h"

namespace ditto {

// What shards hold, as far as a recipe depends on it.
struct ShardFacts {
  std::vector<std::string> train,
      validation;  // patterns, as the recipe writes them; no validation: nothing is held out
  int64_t samples = 0, held_out = 0, captions = 0;
  int64_t classes = 0;                          // 0: not every sample has one
  bool names_classes = false;                   // classes.json lies beside the shards
  int64_t channels = 3, height = 0, width = 0;  // of all, or of the middle one
  bool one_size = true;
  std::vector<std::string> notes;  // what a reader may not expect: shards that are left out, pictures that are cut
};
// Reads the headers of all pictures. `folder`: of the recipe, from which `path` (a folder of shards, or one) is named.
// Pictures over `most_side` are to be made as small. Throws Error(data) where no picture is found.
inline constexpr int kFirstSide = 64;
ShardFacts shard_facts(const std::string& path, const std::string& folder, int64_t most_side = kFirstSide);

struct FirstRecipe {
  int64_t depth = 6, width = 128, heads = 4, patch = 2, batch = 128, steps = 1000;
  std::string name;
};
std::string to_text(const FirstRecipe& recipe, const ShardFacts& facts);

// The largest model, of a ladder from DiT-XL down to one of a million numbers, whose step takes at most `bytes` by its
// dry run and `operations`; at least 32 samples a step, except of the smallest. `count` makes the dry run of a recipe's
// text.
FirstRecipe fit_recipe(const ShardFacts& facts, const std::string& name, int64_t bytes, double operations,
                       const std::function<DryRun(const std::string& text)>& count);

}  // namespace ditto
