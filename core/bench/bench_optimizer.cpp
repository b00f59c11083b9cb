#include "core/bench/bench_optimizer.h"

#include <chrono>
#include <functional>

#include <torch/types.h>

#include "core/assembly/assembly.h"
#include "core/assembly/ema.h"
#include "core/config/numerics.h"
#include "core/measure/median.h"
#include "core/mesh/gradient_sum.h"

namespace ditto {

namespace {

using torch::Tensor;

void time(OptimizerBench::Pass& pass, bool counts, const std::function<void()>& work) {
  const auto began = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  if (counts) pass.seconds.push_back(took.count());
}

int64_t bytes_of(const std::vector<Tensor>& tensors) {
  int64_t bytes = 0;
  for (const auto& tensor : tensors) bytes += tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
  return bytes;
}

}  // namespace

double OptimizerBench::Pass::rate() const { return static_cast<double>(bytes) / report::median(seconds); }

OptimizerBench bench_optimizer(Recipe recipe, Registry& registry, const Mesh& mesh,
                               const OptimizerBenchOptions& options) {
  AssemblyParts parts;
  parts.data = parts.objective = true;
  Assembly assembly(recipe, registry, mesh, parts, {});
  auto& layout = assembly.networks->learned();
  const auto optimizer = assembly.make_optimizer();
  Ema ema(layout, recipe.ema);
  assembly.networks->set_phase(Phase::train);
  assembly.networks->parameters_changed();

  OptimizerBench bench;
  bench.parameters = assembly.networks->parameters();
  Update asked{.lr = recipe.lr_schedule.lr, .clip = 0.5, .exact = is_one_number(recipe)};
  std::vector<Tensor> weights, gradients;
  for (auto& entry : layout.entries) {
    {
      const torch::NoGradGuard no_grad;
      entry.parameter(*assembly.main->ctx);  // a forward would have made its compute copy
    }
    asked.copies.push_back(entry.parameter.leaf().is_same(entry.tensor) ? entry.parameter.copy() : Tensor());
    if (!entry.tensor.requires_grad()) continue;
    entry.tensor.mutable_grad() = torch::randn_like(entry.tensor.detach());
    weights.push_back(entry.tensor);
    gradients.push_back(entry.tensor.grad());
  }
  int64_t states = 0;
  for (const auto& [kind, state] : optimizer->state()) states += bytes_of(state.tensors);
  bench.norm.bytes = bytes_of(gradients);
  bench.update.bytes =
      bytes_of(gradients) + bytes_of(asked.copies) + 2 * (bytes_of(weights) + states + bytes_of(ema.tensors()));
  Tensor stream = torch::ones({1 << 26});
  bench.stream.bytes = 2 * static_cast<int64_t>(stream.nbytes());

  for (int64_t round = 0; round < options.warmup + options.rounds; ++round) {
    const bool counts = round >= options.warmup;
    time(bench.stream, counts, [&] { stream.mul_(-1); });
    time(bench.norm, counts, [&] { grad_norm(layout, mesh, is_one_number(recipe)); });
    time(bench.update, counts, [&] {
      ema.ask(asked, round + 1);
      optimizer->step(asked);
      assembly.networks->parameters_changed();
      for (size_t i = 0; i < layout.entries.size(); ++i)
        if (asked.copies[i].defined()) layout.entries[i].parameter.copied();
    });
  }
  return bench;
}

}  // namespace ditto
