#include "core/dataset/check_data.h"

#include <algorithm>
#include <span>

#include <c10/util/ParallelGuard.h>

#include <ditto/options.h>

#include "core/checkpoint/disk.h"
#include "core/components/components.h"
#include "core/components/sources.h"
#include "core/data/batch_job.h"
#include "core/data/held_out.h"
#include "core/dataset/in_order.h"

namespace ditto {

namespace {

struct Looked {
  std::string problem;  // empty: none
  std::string contents;
};

std::string hash_of_text(const std::string& text) { return checkpoint::checksum(std::as_bytes(std::span(text))); }

std::string contents_of(const Sample& sample) {
  std::string text;
  for (const auto& [name, tensor] : sample.tensors) {
    const auto whole = tensor.contiguous();
    const std::span bytes(static_cast<const std::byte*>(whole.const_data_ptr()), whole.nbytes());
    text += name + ' ' + c10::toString(whole.scalar_type()) + ' ' + to_text(OptionValue(whole.sizes().vec())) + ' ' +
            checkpoint::checksum(bytes) + '\n';
  }
  return hash_of_text(text);
}

Looked look_at_sample(const Source& source, const TensorSpecs& specs, int64_t index) {
  const c10::ParallelGuard one_thread(true);  // as in the loader
  try {
    const auto sample = source.read(index);
    check_indices(sample, specs);
    return {{}, contents_of(sample)};
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::data && error.kind() != ErrorKind::config) throw;
    return {error.what(), "bad"};
  }
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
    DataCheck check{trains ? "to learn from" : "held out", source->size(), source->warnings(), {}};
    in_order(
        check.samples, std::max<int64_t>(recipe.loader.threads, 1),
        [&, specs = source->makes()](int64_t i) { return look_at_sample(*source, specs, i); },
        [&](int64_t, Looked looked) {
          if (!looked.problem.empty()) check.problems.push_back(std::move(looked.problem));
          check.contents = hash_of_text(check.contents + looked.contents);
        });
    checks.push_back(std::move(check));
  }
  return checks;
}

}  // namespace ditto
