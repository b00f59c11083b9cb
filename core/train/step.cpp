#include "core/train/step.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <torch/types.h>

#include "core/assembly/one_number_guard.h"
#include "core/config/numerics.h"
#include "core/data/batch_job.h"
#include "core/mesh/equal_copies.h"

namespace ditto {

using torch::Tensor;

namespace {

constexpr int64_t kStepsAhead = 16;

}  // namespace

TrainingStep::TrainingStep(Assembly& assembly, Loader& loader, Optimizer& optimizer, Ema& ema)
    : assembly_(assembly),
      loader_(loader),
      optimizer_(optimizer),
      ema_(ema),
      lr_schedule_(assembly.recipe.lr_schedule, assembly.recipe.run.steps),
      counter_(assembly.components, *assembly.main),
      shares_(assembly.recipe.run, assembly.recipe.batch, assembly.mesh, assembly.sizes(loader),
              each_alone(assembly.recipe, *assembly.train_data)),
      batches_(assembly, loader, shares_) {
  if (assembly.main->ctx->compute == torch::kHalf) loss_scale = assembly.recipe.run.loss_scale;
  for (auto* model : assembly.networks->training())
    gradients_.push_back(std::make_unique<GradientSum>(model->layout, assembly.mesh, assembly.recipe.run.deterministic,
                                                       sum_order(assembly.recipe)));
  reads_ = reads_of(assembly.recipe.run);
  begin_gradients(shares_.step(0, 0, Phase::train).plan);  // refuses what no step could do
  if (assembly.recipe.run.audit > 0)
    audit_ = std::make_unique<Audit>(assembly, [this](const std::string& line) {
      if (say) say(line);
    });
}

void TrainingStep::begin_gradients(const StepPlan& plan) {
  const auto models = assembly_.networks->training();
  for (size_t i = 0; i < models.size(); ++i) gradients_[i]->begin_step(models[i]->strategies, plan);
}

TrainingStep::Reads TrainingStep::reads_of(const RunOptions& run) const {
  if (run.read_results == "late" && !optimizer_.skips())
    throw Error(ErrorKind::config, "run.read_results",
                "is \"late\", and optimizer \"" + assembly_.recipe.optimizer.plugin +
                    "\" or one of its groups' cannot leave out an update that the device alone knows to be skipped",
                "set run.read_results = \"at_once\", or choose an optimizer that can");
  const bool is_device = !assembly_.main->ctx->device.is_cpu();
  return run.read_results == "late" || (run.read_results == "auto" && is_device && optimizer_.skips()) ? Reads::late
                                                                                                       : Reads::at_once;
}

StepResult TrainingStep::run(int64_t step) {
  ask(
      step, [] { return false; }, Reads::at_once);
  return results().back();
}

bool TrainingStep::make(int64_t step, const std::function<bool()>& wants_to_stop) {
  return ask(step, wants_to_stop, reads_);
}

std::vector<StepResult> TrainingStep::results() { return std::exchange(results_, {}); }

// Nothing is encoded between steps: whoever encodes there does so alone, and on all ranks in one order.
bool TrainingStep::ask(int64_t step, const std::function<bool()>& wants_to_stop, Reads reads) {
  if (reads == Reads::at_once) settle();
  begin_scale(reads);
  const auto share = shares_.step(step, samples, Phase::train);
  auto& networks = *assembly_.networks;
  networks.set_phase(Phase::train);
  auto ledger = share.micro_batches.empty() ? compute_nothing(share.plan) : compute_audited(share);
  samples += shares_.batch();

  const auto device = assembly_.main->ctx->device;
  const auto gathered = ledger.gather(assembly_.mesh, device), losses = ledger.losses_of(gathered);
  const bool stop = is_wanted_by_any(wants_to_stop());
  // Of a model with all that is frozen: a stage that learns nothing has the axes and the dtype of the others.
  const auto& normed = networks.training().size() > 1 ? networks.learned() : networks.main->layout;
  const auto norm = unscale(
      grad_norm_on(device, normed, assembly_.mesh, assembly_.main->ctx->ops.table(), is_one_number(assembly_.recipe)));
  for (auto* observer : observers) observer->has_gradients(ledger, norm);

  settle();  // the step before, where it is read late
  StepResult known;
  known.step = step + 1;
  known.lr = lr_schedule_.at(step);
  known.updates = updates + 1;
  known.loss_scale = loss_scale;
  known.stop = stop;
  asked_.emplace(Asked{known, std::move(ledger), Reading(torch::cat({norm.view({1}), gathered.flatten()}))});
  Update asked{.lr = known.lr};
  bool is_skipped = false;
  if (reads == Reads::late) {
    asked_->counters = optimizer_.counters();
    decide(gathered, losses, norm, asked);
  } else {
    settle();
    const auto& result = results_.back();
    is_skipped = result.skipped;
    if (const double largest = assembly_.recipe.run.clip_norm; largest > 0)
      asked.clip = clip_factor(result.grad_norm, largest);
  }
  if (!is_skipped) {
    update(asked);
    for (auto* observer : observers) observer->has_updated();
  }
  if (batches_.is_encoding())
    for (auto* observer : observers) observer->waits_for_encoding();
  batches_.wait();
  return stop;
}

void TrainingStep::begin_scale(Reads reads) {
  if (assembly_.main->ctx->compute != torch::kHalf || (reads == Reads::late && scale_.defined())) return;
  scale_ = torch::full({}, loss_scale, torch::TensorOptions(torch::kDouble).device(assembly_.main->ctx->device));
}

// In the host's memory, whatever the run computes on.
bool TrainingStep::is_wanted_by_any(bool wanted) const {
  auto flag = torch::tensor({wanted ? 1.0 : 0.0}, torch::kDouble);
  return assembly_.mesh.world().all_reduce(flag).item<double>() > 0;
}

void TrainingStep::settle() {
  if (!asked_) return;
  auto asked = std::move(*asked_);
  asked_.reset();
  auto& result = asked.result;
  const auto numbers = asked.numbers.wait();
  const auto totals = asked.ledger.totals(numbers.narrow(0, 1, numbers.numel() - 1));
  result.grad_norm = numbers.const_data_ptr<double>()[0];
  result.loss = totals.loss;
  result.losses = totals.parts;
  result.samples = totals.samples;
  if (totals.samples == 0) {  // there is none
    result.loss = std::numeric_limits<double>::quiet_NaN();
    for (auto& [name, loss] : result.losses) loss = result.loss;
  }
  result.skipped = skip(result);
  if (result.skipped) {
    --result.updates;
    updates = result.updates;
    if (asked.counters) optimizer_.set_counters(*asked.counters);
  }
  results_.push_back(std::move(result));
}

// What `skip`, `overflowed` and `clip_factor` will find, on the device. The host knows how many steps there were
// without an overflow before this one.
void TrainingStep::decide(const Tensor& gathered, const Tensor& losses, const Tensor& norm, Update& update) {
  const auto& run = assembly_.recipe.run;
  const torch::NoGradGuard no_grad;
  const auto has_samples = gathered[0].ne(0).any(), has_loss = losses.sum().isfinite();
  const auto is_finite = has_loss.logical_and(norm.isfinite());
  update.skip = has_samples.logical_and(is_finite).logical_not();
  if (run.clip_norm > 0) update.late_clip = clip_factor(norm, run.clip_norm);
  // Where the host updates what is offloaded, it waits for both here, and once.
  const auto& entries = assembly_.networks->learned().entries;
  if (std::any_of(entries.begin(), entries.end(), [](const auto& entry) { return entry.tensor.is_cpu(); })) {
    const bool clips = update.late_clip.defined();
    const auto known = torch::stack({update.skip.to(torch::kDouble), clips ? update.late_clip : norm}).cpu();
    update.skip = known[0].to(torch::kBool);
    if (clips) update.late_clip = known[1];
  }
  if (!scale_.defined()) return;
  const bool rises = (steps_since_overflow + 1) % run.loss_scale_every == 0;
  const auto fallen = torch::where(has_loss.logical_and(scale_ > 1), scale_ / 2, scale_);
  scale_ = torch::where(has_samples, torch::where(is_finite, rises ? scale_ * 2 : scale_, fallen), scale_);
}

void TrainingStep::begin(const StepPlan& plan) {
  clear_gradients();
  begin_gradients(plan);
  for (auto* strategy : assembly_.networks->strategies()) strategy->begin_step(plan);
}

std::optional<int64_t> TrainingStep::bytes_ahead() const {
  if (!batches_.looks_ahead()) return std::nullopt;
  return batches_.bytes_ahead();
}

LossLedger TrainingStep::compute_audited(const StepShares::Step& step) {
  const auto loaded = batches_.load(step, samples, [this](const Batch& read) {  // Source -> Loader -> Batch -> Encoder
    for (auto* observer : observers) observer->has_read(read);
  });
  begin_next(step.plan.step + 1);
  if (!audit_) return compute(step, loaded);
  std::optional<LossLedger> ledger;
  audit_->run(
      shares_, step, [&] { ledger.emplace(compute(step, loaded)); },
      [&](int64_t accumulation, int owner) { repeat(step, loaded, accumulation, owner); });
  return std::move(*ledger);
}

void TrainingStep::begin_next(int64_t number) {
  if (!batches_.looks_ahead() || number >= assembly_.recipe.run.steps) return;
  const auto first = samples + shares_.batch();
  batches_.begin(shares_.step(number, first, Phase::train), first);
  if (meter) batches_.wait();  // what a forward leaves is measured, and nothing else is to come and go
}

// All ranks know alike that batch.sizes has none of the step's samples: nothing is read, run or summed.
LossLedger TrainingStep::compute_nothing(const StepPlan& plan) {
  LossLedger ledger(samples, shares_.batch(), plan.micro_batches);
  auto program = make_program(assembly_, ledger, 1, scale_);
  for (auto* observer : observers) observer->begins(plan.step, program);
  clear_gradients();
  flops.reset();
  activations.reset();
  return ledger;
}

// Objective { corrupt -> condition, tokens, blocks, head -> losses } -> backward
LossLedger TrainingStep::compute(const StepShares::Step& step, const Loaded& loaded) {
  const StepPlan& plan = step.plan;
  auto& networks = *assembly_.networks;
  LossLedger ledger(samples, shares_.batch(), plan.micro_batches);
  auto program = make_program(assembly_, ledger, loaded.weight, scale_);
  program.accumulation_done = [&](int64_t accumulation) { end_accumulation(accumulation, plan); };
  for (auto* observer : observers) observer->begins(plan.step, program);
  if (audit_) audit_->look_at(program);
  begin(plan);
  count_flops(loaded.batches);
  if (meter) watch_activations(program);
  const bool watches = is_one_number(assembly_.recipe) && !watched_;
  if (watches)
    run_watched(loaded.batches, program, plan);
  else
    run_micro_batches(loaded.batches, program, plan);
  for (auto* strategy : networks.strategies()) strategy->sync_gradients();
  for (auto& sum : gradients_) sum->finish(plan);
  if (watches) check_equal_copies(networks.learned(), assembly_.mesh);
  return ledger;
}

// As a step of one accumulation in which every rank has a micro-batch: strategies sum as they do in steps, the host
// does not.
void TrainingStep::repeat(const StepShares::Step& step, const Loaded& loaded, int64_t accumulation, int owner) {
  StepPlan plan = step.plan;
  plan.micro_batches = assembly_.mesh.data_ranks();
  plan.accumulations = plan.mine = 1;
  const auto* places = shares_.of(step, accumulation, owner);
  const auto job = loader_.read(places ? *places : step.micro_batches.front());
  job->leave_out(loaded.left_out);
  std::vector<Batch> batches{batches_.encode(job->result())};
  if (!places) std::fill(batches[0].weights.begin(), batches[0].weights.end(), 0.0);
  LossLedger unread(samples, shares_.batch(), plan.micro_batches);
  auto program = make_program(assembly_, unread, loaded.weight, scale_);
  program.accumulation_done = [&](int64_t) {
    for (auto* strategy : assembly_.networks->strategies()) strategy->end_accumulation(0, plan);
  };
  audit_->look_at(program);
  begin(plan);
  run_micro_batches(batches, program, plan);
  for (auto* strategy : assembly_.networks->strategies()) strategy->sync_gradients();
  clear_gradients();
}

// The layout's entries are the optimizer's parameters.
void TrainingStep::update(Update& asked) {
  asked.exact = is_one_number(assembly_.recipe);
  ema_.ask(asked, ++updates);
  const auto& entries = assembly_.networks->learned().entries;
  for (const auto& entry : entries)
    asked.copies.push_back(entry.parameter.leaf().is_same(entry.tensor) ? entry.parameter.copy() : Tensor());
  for (auto* observer : observers) observer->updates(asked);
  optimizer_.step(asked);
  assembly_.networks->parameters_changed();  // which all copies follow but those that are written already
  for (size_t i = 0; i < entries.size(); ++i)
    if (asked.copies[i].defined()) entries[i].parameter.copied();
}

void TrainingStep::clear_gradients() {
  for (auto& entry : assembly_.networks->learned().entries) {
    entry.tensor.mutable_grad().reset();
    entry.parameter.leaf().mutable_grad().reset();
  }
}

// Where a model cannot be counted the run goes on without a figure.
void TrainingStep::count_flops(const std::vector<Batch>& batches) {
  if (!no_flops.empty()) return;
  try {
    flops = 0;
    for (const auto& batch : batches) *flops += 3 * counter_.forward(batch);  // a backward costs two forwards
  } catch (const Error& error) {
    flops.reset();
    no_flops = error.what();
  }
}

void TrainingStep::watch_activations(Program& program) {
  activations.reset();
  program.backward = [this, before = meter->current(), inner = std::move(program.backward)](const Tensors& roots,
                                                                                            const Tensors& gradients) {
    if (!activations) activations = meter->current() - before;
    inner(roots, gradients);
  };
}

void TrainingStep::run_micro_batches(const std::vector<Batch>& batches, Program& program, const StepPlan& plan) {
  for (auto& strategy : assembly_.main->strategies)
    if (strategy->train_step(batches, program, plan)) return;
  for (int64_t accumulation = 0; accumulation < plan.accumulations; ++accumulation) {
    if (accumulation < static_cast<int64_t>(batches.size())) {
      const auto batch = program.prepare(batches[static_cast<size_t>(accumulation)]);
      Tensor loss;
      {
        const Traffic::Scope pass(assembly_.mesh.traffic(), Traffic::Pass::forward);
        auto stream = program.begin(batch);
        program.blocks(0, assembly_.main->model->depth(), stream);
        const auto outputs = program.head(stream, batch);
        loss = program.loss(stream, outputs, batch);
      }
      program.backward({loss}, {Tensor()});
    }
    program.accumulation_done(accumulation);
  }
}

// Of a process's first step: what it computes later it computes by the same calls.
void TrainingStep::run_watched(const std::vector<Batch>& batches, Program& program, const StepPlan& plan) {
  const OneNumberGuard guard;
  run_micro_batches(batches, program, plan);
  guard.check();
  watched_ = true;
}

void TrainingStep::end_accumulation(int64_t accumulation, const StepPlan& plan) {
  for (auto* strategy : assembly_.networks->strategies()) strategy->end_accumulation(accumulation, plan);
  for (auto& sum : gradients_) sum->after_micro_batch(accumulation, plan);
}

Tensor TrainingStep::unscale(const Tensor& norm) {
  if (!scale_.defined()) return norm;
  const auto inverse = torch::ones_like(scale_) / scale_;
  for (auto& entry : assembly_.networks->learned().entries)
    if (const auto& grad = entry.tensor.grad(); grad.defined()) grad.mul_(inverse.to(grad.device()));
  return norm / scale_;
}

// The loss scale of P. Micikevicius et al., 2018 (arXiv:1710.03740): all ranks see the same norm, and so agree.
bool TrainingStep::overflowed(const StepResult& result) {
  if (assembly_.main->ctx->compute != torch::kHalf) return false;
  if (std::isfinite(result.loss) && std::isfinite(result.grad_norm)) {
    if (++steps_since_overflow % assembly_.recipe.run.loss_scale_every == 0) loss_scale *= 2;
    return false;
  }
  steps_since_overflow = 0;
  if (!std::isfinite(result.loss) || loss_scale <= 1) return false;  // no smaller scale helps
  loss_scale /= 2;
  return true;
}

bool TrainingStep::skip(const StepResult& result) {
  const auto& run = assembly_.recipe.run;
  const auto where = "step " + std::to_string(result.step);
  if (result.samples == 0) {  // an update would move the weights by moments and decay alone
    if (++skipped_in_a_row > run.max_skipped)
      throw Error(
          ErrorKind::data, where,
          "none of its samples can be learned from, for the " + std::to_string(skipped_in_a_row) + "th time in a row",
          assembly_.recipe.batch.sizes.empty()
              ? "the first ones that do not decode are named above; `ditto data verify RECIPE` names all"
              : "name in batch.sizes more of the sizes that the start counts, or raise run.batch; `ditto data verify "
                "RECIPE` names samples that do not decode");
    return true;
  }
  if (overflowed(result)) return true;
  if (std::isfinite(result.loss) && std::isfinite(result.grad_norm)) {
    skipped_in_a_row = 0;
    return false;
  }
  const auto what =
      "the loss is " + std::to_string(result.loss) + ", the gradient's norm " + std::to_string(result.grad_norm);
  if (run.non_finite == "stop")
    throw Error(ErrorKind::numeric, where, what,
                "lower lr_schedule.lr, set run.clip_norm, or run.non_finite = \"skip\"");
  if (++skipped_in_a_row > run.max_skipped)
    throw Error(ErrorKind::numeric, where, what + ", for the " + std::to_string(skipped_in_a_row) + "th time in a row",
                "run.max_skipped = " + std::to_string(run.max_skipped) +
                    " steps in a row may be skipped; lower lr_schedule.lr");
  return true;
}

void TrainingStep::expect(int64_t step) {
  struct Ahead {
    int64_t step, first, accumulation = 0;
    StepShares::Step share = {};
  };
  const auto ahead = std::make_shared<Ahead>(Ahead{step, samples});
  loader_.expect([this, ahead, steps = assembly_.recipe.run.steps](int64_t) -> std::optional<Places> {
    // A rank may have no micro-batch in a step, or in none.
    for (int64_t tries = 0; ahead->step < steps && tries < kStepsAhead;
         ++tries, ++ahead->step, ahead->first += shares_.batch(), ahead->accumulation = 0) {
      if (ahead->accumulation == 0) ahead->share = shares_.step(ahead->step, ahead->first, Phase::train);
      if (ahead->accumulation < batches_.accumulations(ahead->share.plan))
        return shares_.mine(ahead->share, ahead->accumulation++);
    }
    return std::nullopt;
  });
}

}  // namespace ditto
