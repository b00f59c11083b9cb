#include "core/train/validation.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>

#include <torch/types.h>

#include "core/assembly/agreed_samples.h"
#include "core/assembly/program.h"
#include "core/data/names.h"
#include "core/train/step.h"

namespace ditto {

namespace {

// The mean of each stratum by the samples' weights, of what all ranks entered.
std::vector<std::optional<double>> strata_means(const Mesh& mesh, const LossLedger& ledger) {
  auto sums = torch::zeros({2, kStrata}, torch::kDouble);
  const auto add = [](torch::Tensor to, const std::vector<double>& row) {
    for (size_t i = 0; i < row.size(); ++i) to.data_ptr<double>()[i % kStrata] += row[i];
  };
  for (const auto& [name, row] : ledger.entered()) add(sums[0], row);
  add(sums[1], ledger.weights());
  sums = loss_group(mesh).all_reduce(sums);
  std::vector<std::optional<double>> means;
  for (int64_t k = 0; k < kStrata; ++k) {
    const double weight = sums[1][k].item<double>();
    means.push_back(weight > 0 ? std::optional(sums[0][k].item<double>() / weight) : std::nullopt);
  }
  return means;
}

torch::Tensor strata_middles(const Batch& batch) {
  std::vector<double> u;
  for (const int64_t id : batch.ids) u.push_back((static_cast<double>(id % kStrata) + 0.5) / kStrata);
  return torch::tensor(u, torch::kDouble);
}

// All held-out samples that a validation reads are one step.
StepShares shares_of(Assembly& assembly, const Loader& loader) {
  const auto& recipe = assembly.recipe;
  RunOptions run = recipe.run;
  run.batch = std::min<int64_t>(recipe.validate.samples, assembly.validation_data->size());
  run.micro_batch =
      recipe.validate.batch > 0 ? recipe.validate.batch : asked_micro_batch(recipe.run, assembly.mesh.data_ranks());
  // Nothing is added up over samples here: those whose tokens are shared may stand side by side.
  const auto alone = each_alone(recipe, *assembly.validation_data);
  return {run, recipe.batch, assembly.mesh, assembly.sizes(loader), alone == Alone::sizes_differ ? alone : Alone::no};
}

}  // namespace

void check_validation(Assembly& assembly, const Loader& loader) {
  const auto shares = shares_of(assembly, loader);
  if (!shares.step(0, 0, Phase::evaluate).micro_batches.empty()) return;
  throw Error(ErrorKind::config, "batch.sizes",
              "has none of the sizes of the held-out samples, of which " + std::to_string(shares.batch()) + " are read",
              "name sizes that they have, or set validate.every = 0");
}

report::ValidationRecord validate(Assembly& assembly, Ema& ema, Loader& loader) {
  const auto began = std::chrono::steady_clock::now();
  torch::NoGradGuard no_grad;
  const Ema::Scope averaged(ema, [&assembly] { assembly.networks->parameters_changed(); });
  assembly.networks->set_phase(Phase::evaluate);
  const auto shares = shares_of(assembly, loader);
  const auto step = shares.step(0, 0, Phase::evaluate);
  const auto& plan = step.plan;
  LossLedger ledger(0, shares.batch(), plan.micro_batches);
  auto program = make_program(assembly, ledger, 1);
  for (auto* strategy : assembly.networks->strategies()) strategy->begin_step(plan);
  // Losses are computed where a pipeline ends, and enter the ledger there.
  program.head = [&, head = program.head](Stream& stream, const Batch& batch) {
    const auto outputs = head(stream, batch);
    program.loss(stream, outputs, batch);
    return outputs;
  };
  std::vector<int64_t> left_out;  // of the first accumulation, whose samples are also run by ranks that have none left
  for (int64_t accumulation = 0; accumulation < plan.accumulations; ++accumulation) {
    std::vector<std::shared_ptr<BatchJob>> mine, idle;
    if (plan.runs(accumulation) || assembly.networks->in_step())
      (plan.runs(accumulation) ? mine : idle).push_back(loader.read(shares.mine(step, accumulation)));
    auto agreed = agree_on_samples(assembly.mesh, loader, shares.of_all(step, accumulation), mine);
    if (accumulation == 0) left_out = std::move(agreed);
    for (const auto& job : idle) job->leave_out(left_out);
    if (mine.empty() && idle.empty()) continue;
    auto batch =
        assembly.networks->encode((mine.empty() ? idle : mine).front()->result().to(assembly.main->ctx->device));
    if (!plan.runs(accumulation)) std::fill(batch.weights.begin(), batch.weights.end(), 0.0);
    batch = std::move(batch).changed([](Batch part) {
      part[names::kStratum] = strata_middles(part);
      return part;
    });
    batch = program.prepare(std::move(batch));
    assembly.main->predict(batch, program);
  }
  const auto totals = ledger.sum(assembly.mesh);
  report::ValidationRecord record;
  record.loss = totals.loss;
  record.losses = totals.parts;
  if (totals.samples == 0) {  // there is none
    record.loss = std::numeric_limits<double>::quiet_NaN();
    for (auto& [name, loss] : record.losses) loss = record.loss;
  }
  record.samples = static_cast<int64_t>(totals.samples);
  record.weights = ema.enabled() ? "ema" : "trained";
  record.strata = strata_means(assembly.mesh, ledger);
  record.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return record;
}

}  // namespace ditto
