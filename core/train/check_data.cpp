#include "core/train/check_data.h"

#include <algorithm>

#include <c10/util/ParallelGuard.h>

#include "core/data/batch_job.h"
#include "core/data/held_out.h"
#include "core/data/in_order.h"
#include "core/network/components.h"
#include "core/train/sources.h"

namespace ditto {

namespace {

// What is wrong with a sample; empty: nothing.
std::string problem_of(const Source& source, const TensorSpecs& specs, int64_t index) {
  const c10::ParallelGuard one_thread(true);  // as in the loader
  try {
    check_indices(source.read(index), specs);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::data && error.kind() != ErrorKind::config) throw;
    return error.what();
  }
  return {};
}

}  // namespace

std::vector<DataCheck> check_data(Recipe& recipe, Registry& registry) {
  Components components(recipe, registry);
  std::vector<DataCheck> checks;
  std::shared_ptr<Source> learned;
  for (const auto split : {SplitOf::train, SplitOf::validation}) {
    const bool trains = split == SplitOf::train;
    if (!trains && recipe.validate.every == 0) continue;
    const auto source = open_source(components, {.split = split, .folder = recipe.run.folder});
    if (learned) require_held_out(*learned, *source);
    learned = source;
    DataCheck check{trains ? "to learn from" : "held out", source->size(), source->warnings()};
    in_order(
        check.samples, std::max<int64_t>(recipe.loader.threads, 1),
        [&, specs = source->makes()](int64_t i) { return problem_of(*source, specs, i); },
        [&](int64_t, std::string problem) {
          if (!problem.empty()) check.problems.push_back(std::move(problem));
        });
    checks.push_back(std::move(check));
  }
  return checks;
}

}  // namespace ditto
