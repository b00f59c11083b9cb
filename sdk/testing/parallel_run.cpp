#include "parallel_run.h"

#include <algorithm>

#include <torch/torch.h>

#include "model_run.h"
#include "parallel_model.h"

namespace ditto::testing {

using torch::Tensor;

ParallelRun::ParallelRun(const Mesh& mesh, bool deterministic, const MakeStrategy& make)
    : mesh_(mesh), deterministic_(deterministic), model_(parallel_model()), ctx_(context(at::kDouble)) {
  fill(*model_, at::kDouble);
  layout = Layout::of(*model_);
  units_ = std::make_unique<ModelProgram>(*model_, ctx_);
  if (!make) return;
  strategy_ = make({&mesh, deterministic, model_->token_local(), at::kDouble, model_->depth()});
  strategy_->claim(layout);
  strategy_->shard(layout);
  units_->wrap(*strategy_);
  parameters_changed();
}

void ParallelRun::parameters_changed() {
  torch::NoGradGuard no_grad;
  for (auto& entry : layout.entries) entry.tensor.unsafeGetTensorImpl()->bump_version();
  if (strategy_) strategy_->parameters_changed();
}

// This rank's share of the run's loss: ranks along tensor and context compute the same one.
Tensor ParallelRun::loss(const Stream& stream, const Outputs& outputs, const Batch& batch) const {
  auto loss_B = (outputs.at("prediction") - batch.at("target")).square().flatten(1).mean(1);
  for (const auto& [name, more] : stream.auxiliary_losses) loss_B = loss_B + more;
  const auto weights = torch::tensor(batch.weights, at::kDouble);
  return (loss_B * weights).sum() / (samples_ * mesh_.size(Axis::tensor) * mesh_.size(Axis::context));
}

Program ParallelRun::program(const StepPlan& plan) {
  auto program = units_->program(mesh_.traffic());
  program.prepare = [](Batch batch) { return batch; };
  program.loss = [this](const Stream& stream, const Outputs& outputs, const Batch& batch) {
    return loss(stream, outputs, batch);
  };
  program.accumulation_done = [this, plan](int64_t accumulation) { end_accumulation(accumulation, plan); };
  return program;
}

void ParallelRun::step(int64_t step, int64_t micro_batches) {
  const int64_t n = mesh_.data_ranks(), r = mesh_.data_rank();
  const StepPlan plan{step, micro_batches, (micro_batches + n - 1) / n, (micro_batches - r + n - 1) / n, Phase::train};
  left_.clear();
  accumulations_.assign(layout.entries.size(), Tensor());
  for (auto& entry : layout.entries) {
    entry.tensor.mutable_grad().reset();
    entry.parameter.leaf().mutable_grad().reset();
    left_.push_back(entry.summed = strategy_ ? strategy_->sums(entry, plan) : AxisSet());
  }
  if (strategy_) strategy_->begin_step(plan);
  run_micro_batches(plan);
  if (strategy_) strategy_->sync_gradients();
  torch::NoGradGuard no_grad;
  for (size_t i = 0; i < accumulations_.size(); ++i)
    if (accumulations_[i].defined()) layout.entries[i].tensor.mutable_grad() = accumulations_[i];
  sum(/*data_axes_alone=*/false);
}

void ParallelRun::run_micro_batches(const StepPlan& plan) {
  const int64_t n = mesh_.data_ranks(), r = mesh_.data_rank();
  const int64_t here = strategy_ && strategy_->in_step() ? plan.accumulations : plan.mine;
  std::vector<Batch> batches;
  for (int64_t accumulation = 0; accumulation < here; ++accumulation) {
    batches.push_back(parallel_batch(100 * plan.step + accumulation * n + r));
    if (!plan.runs(accumulation)) batches.back().weights.assign(batches.back().ids.size(), 0.0);
  }
  samples_ = static_cast<double>(plan.micro_batches * parallel_batch(0).size());
  auto parts = program(plan);
  if (strategy_ && strategy_->train_step(batches, parts, plan)) return;
  for (int64_t accumulation = 0; accumulation < plan.accumulations; ++accumulation) {
    if (accumulation < here) {
      const Batch& batch = batches[static_cast<size_t>(accumulation)];
      auto stream = parts.begin(batch);
      parts.blocks(0, model_->depth(), stream);
      const auto outputs = parts.head(stream, batch);
      parts.backward({loss(stream, outputs, batch)}, {Tensor()});
    }
    parts.accumulation_done(accumulation);
  }
}

void ParallelRun::end_accumulation(int64_t accumulation, const StepPlan& plan) {
  if (strategy_) strategy_->end_accumulation(accumulation, plan);
  if (deterministic_ && mesh_.data_ranks() > 1) sum(/*data_axes_alone=*/true);
}

AxisSet ParallelRun::open_axes(size_t index, bool data_axes_alone) const {
  AxisSet axes;
  for (const Axis axis : kAxes) {
    const bool is_data = kDataAxes.count(axis) != 0, is_done = is_data && accumulations_[index].defined();
    if (mesh_.size(axis) > 1 && layout.entries[index].is_copy(axis) && left_[index].count(axis) == 0 &&
        (data_axes_alone ? is_data : !is_done))
      axes.insert(axis);
  }
  return axes;
}

// Over copies: of the accumulation that is over along data axes, or of what is still to be summed. One call for all
// that go the same way.
void ParallelRun::sum(bool data_axes_alone) {
  torch::NoGradGuard no_grad;
  std::map<AxisSet, std::vector<size_t>> together;
  for (size_t i = 0; i < layout.entries.size(); ++i) together[open_axes(i, data_axes_alone)].push_back(i);
  for (const auto& [axes, entries] : together) {
    if (axes.empty() && data_axes_alone) continue;
    Tensors flat;
    std::vector<int64_t> lengths;
    for (const size_t i : entries) {
      const auto& tensor = layout.entries[i].tensor;
      flat.push_back((tensor.grad().defined() ? tensor.grad() : torch::zeros_like(tensor.detach())).reshape(-1));
      lengths.push_back(tensor.numel());
    }
    const auto sums = mesh_.group(axes).all_reduce(torch::cat(flat)).split_with_sizes(lengths);
    for (size_t k = 0; k < entries.size(); ++k) take(entries[k], sums[k], data_axes_alone);
  }
}

void ParallelRun::take(size_t index, const Tensor& sum, bool is_of_accumulation) {
  auto& tensor = layout.entries[index].tensor;
  const auto grad = sum.view(tensor.sizes());
  if (!is_of_accumulation) {
    tensor.mutable_grad() = grad;
    return;
  }
  accumulations_[index] = accumulations_[index].defined() ? accumulations_[index] + grad : grad;
  tensor.mutable_grad().reset();
}

void ParallelRun::descend() {
  torch::NoGradGuard no_grad;
  for (auto& entry : layout.entries) entry.tensor.sub_(entry.tensor.grad(), 0.05);
  parameters_changed();
}

Tensor ParallelRun::predict(int64_t number) {
  torch::NoGradGuard no_grad;
  const StepPlan plan{0, 1, 1, 1, Phase::evaluate};
  if (strategy_) strategy_->begin_step(plan);
  auto parts = program(plan);
  const Batch batch = parallel_batch(number);
  if (strategy_)
    if (auto prediction = strategy_->predict(batch, parts)) return *prediction;
  auto stream = parts.begin(batch);
  parts.blocks(0, model_->depth(), stream);
  return parts.head(stream, batch).at("prediction");
}

}  // namespace ditto::testing
