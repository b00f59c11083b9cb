#include "core/bench/bench_loader.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>

#include "core/components/components.h"
#include "core/components/sources.h"
#include "core/console/streams.h"
#include "core/data/loader.h"

namespace ditto {

namespace {

double processor_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

int64_t bytes_of(const Batch& batch) {
  int64_t bytes = 0;
  for (const Batch& part : batch)
    for (const auto& [name, tensor] : part.tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

}  // namespace

LoaderBench bench_loader(Recipe& recipe, Registry& registry, const LoaderBenchOptions& options) {
  require(recipe, recipe.data, "data");
  Components components(recipe, registry);
  const auto source = open_source(components, {.split = SplitOf::train, .folder = recipe.run.folder});
  const auto warn = [](const std::string& line) { report::tell(line); };
  Loader loader(source, recipe.loader, static_cast<uint64_t>(recipe.run.seed), warn);

  LoaderBench bench;
  const auto& run = recipe.run;
  bench.micro_batch = run.micro_batch > 0 ? std::min(run.micro_batch, run.batch) : run.batch;
  bench.source_samples = source->size();
  const auto places = [&bench](int64_t k) { return Places(k * bench.micro_batch, bench.micro_batch); };
  loader.expect(places);
  int64_t next = 0;
  while (next < options.warmup) loader.next(places(next++));

  const auto began = std::chrono::steady_clock::now();
  const double computed = processor_seconds();
  while (bench.seconds < options.seconds) {
    const auto batch = loader.next(places(next++));
    bench.samples += batch.size();
    bench.left_out += std::count(batch.weights.begin(), batch.weights.end(), 0.0);
    bench.bytes += bytes_of(batch);
    bench.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  }
  bench.computed_s = processor_seconds() - computed;
  return bench;
}

}  // namespace ditto
