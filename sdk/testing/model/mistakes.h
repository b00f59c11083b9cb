// Mistakes that authors of models make, looked for on one rank: what a layout that trains otherwise looks like.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <ditto/model.h>

namespace ditto::testing {

// What a layout does to a model, and so which mistakes it shows.
enum class Touches {
  nothing,  // one rank, by itself
  layers,   // cuts layers (tensor), or deals their heads out (fastseq)
  tokens,   // cuts tokens
  units,    // keeps the parameters of units elsewhere while these do not run
  stages,   // runs units on several ranks, one after another
  again,    // runs blocks once more in backward
  packs,    // several samples in one row of tokens
};

struct Mistake {
  std::string what;         // "a hard-coded number of heads: where …"
  std::set<Touches> shows;  // where it does
  bool is_certain = true;   // wrong even where no layout shows it
  std::string name() const { return what.substr(0, what.find(": ")); }
};

// `model`: makes it anew, since looking leaves traces in it; `context` likewise. In double precision.
std::vector<Mistake> find_mistakes(const std::function<std::shared_ptr<Model>()>& model,
                                   const std::function<Context()>& context, const Batch& in);

}  // namespace ditto::testing
