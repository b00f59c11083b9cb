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

// The mean of each stratum by the samples' weights.
std::vector<std::optional<double>> strata_means(const LossLedger::Totals& totals) {
  std::vector<double> sums(kStrata), weights(kStrata);
  const auto add = [](std::vector<double>& to, const std::vector<double>& row) {
    for (size_t i = 0; i < row.size(); ++i) to[i % kStrata] += row[i];
  };
  for (const auto& [name, row] : totals.weighed) add(sums, row);
  add(weights, totals.weights);
  std::vector<std::optional<double>> means;
  for (int64_t k = 0; k < kStrata; ++k) {
    const auto at = static_cast<size_t>(k);
    means.push_back(weights[at] > 0 ? std::optional(sums[at] / weights[at]) : std::nullopt);
  }
  return means;
}

std::vector<std::optional<double>> measurements(const LossLedger::Totals& totals) {
  std::vector<std::optional<double>> measured(totals.weights.size());
  for (size_t i = 0; i < measured.size(); ++i) {
    if (totals.weights[i] == 0) continue;
    double sum = 0;
    for (const auto& [name, row] : totals.weighed) sum += row[i];
    measured[i] = sum / totals.weights[i];
  }
  return measured;
}

torch::Tensor strata_middles(const Batch& batch) {
  std::vector<double> u;
  for (const int64_t id : batch.ids) u.push_back((static_cast<double>(id % kStrata) + 0.5) / kStrata);
  return torch::tensor(u, torch::kDouble);
}

// A number modulo kStrata says the stratum, and the whole of it whose noise it is.
Batch numbered_for(int64_t stratum, Batch batch) {
  const auto number = [&](Batch& one) {
    for (int64_t& id : one.ids) id = id * kStrata + stratum;
  };
  number(batch);
  for (auto& part : batch.parts) number(part);
  return batch;
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

bool sees_each_stratum(const ValidateOptions& options, int64_t samples) {
  return options.strata == "auto" ? samples < kStrata * kStrata : options.strata == "each";
}

HeldOutLosses held_out_losses(Assembly& assembly, Loader& loader) {
  torch::NoGradGuard no_grad;
  assembly.networks->set_phase(Phase::evaluate);
  const auto shares = shares_of(assembly, loader);
  const auto step = shares.step(0, 0, Phase::evaluate);
  const auto& plan = step.plan;
  HeldOutLosses found;
  found.each = sees_each_stratum(assembly.recipe.validate, shares.batch());
  const int64_t times = found.each ? kStrata : 1;
  LossLedger ledger(0, shares.batch() * times, plan.micro_batches);
  auto program = make_program(assembly, ledger, 1);
  for (auto* strategy : assembly.networks->strategies()) strategy->begin_step(plan);
  // Losses are computed where a pipeline ends, and enter the ledger there.
  program.head = [&, head = program.head](Stream& stream, const Batch& batch) {
    const auto outputs = head(stream, batch);
    program.loss(stream, outputs, batch);
    return outputs;
  };
  const auto predict = [&](Batch batch) {
    batch = std::move(batch).changed([](Batch part) {
      part[names::kStratum] = strata_middles(part);
      return part;
    });
    assembly.main->predict(program.prepare(std::move(batch)), program);
  };
  std::vector<int64_t> left_out;  // of the first accumulation, whose samples are also run by ranks that have none left
  for (int64_t accumulation = 0; accumulation < plan.accumulations; ++accumulation) {
    std::vector<std::shared_ptr<BatchJob>> mine, idle;
    if (plan.runs(accumulation) || assembly.networks->in_step())
      (plan.runs(accumulation) ? mine : idle).push_back(loader.read(shares.mine(step, accumulation)));
    auto agreed = agree_on_samples(assembly.mesh, shares.of_all(step, accumulation), mine);
    leave_out(assembly.mesh, loader, agreed);
    if (accumulation == 0) left_out = std::move(agreed);
    for (const auto& job : idle) job->leave_out(left_out);
    if (mine.empty() && idle.empty()) continue;
    auto batch = assembly.networks->encode(
        (mine.empty() ? idle : mine).front()->result().to(assembly.main->ctx->device), Phase::evaluate);
    if (!plan.runs(accumulation)) std::fill(batch.weights.begin(), batch.weights.end(), 0.0);
    if (found.each)
      for (int64_t stratum = 0; stratum < kStrata; ++stratum) predict(numbered_for(stratum, batch));
    else
      predict(std::move(batch));
  }
  const auto totals = ledger.sum(assembly.mesh);
  found.loss = totals.loss;
  found.parts = totals.parts;
  found.measures = totals.measures;
  if (totals.samples == 0) {  // there is none
    found.loss = std::numeric_limits<double>::quiet_NaN();
    for (auto* numbers : {&found.parts, &found.measures})
      for (auto& [name, number] : *numbers) number = found.loss;
  }
  found.samples = static_cast<int64_t>(totals.samples) / times;
  found.strata = strata_means(totals);
  found.measured = measurements(totals);
  return found;
}

report::ValidationRecord validate(Assembly& assembly, Ema& ema, Loader& loader) {
  const auto began = std::chrono::steady_clock::now();
  torch::NoGradGuard no_grad;
  const Ema::Scope averaged(ema, [&assembly] { assembly.networks->parameters_changed(); });
  const auto found = held_out_losses(assembly, loader);
  report::ValidationRecord record;
  record.loss = found.loss;
  record.losses = found.parts;
  record.measures = found.measures;
  record.samples = found.samples;
  record.weights = ema.enabled() ? "ema" : "trained";
  record.strata = found.strata;
  record.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return record;
}

}  // namespace ditto
