#include "parallel/parallel_run.h"

#include <algorithm>

#include <torch/types.h>

#include <ditto/parallel/pack.h>

#include "model/model_run.h"
#include "parallel/parallel_model.h"

namespace ditto::testing {

using torch::Tensor;

Tensor piece_of(const Tensor& whole, const LayoutEntry& entry) {
  const Tensor piece = torch::zeros(local_shape(entry), whole.options().requires_grad(false));
  for (const Rectangle& r : entry.slices()) {
    Tensor from = whole.detach(), into = piece;
    for (size_t d = 0; d < r.size.size(); ++d) {
      const auto dim = static_cast<int64_t>(d);
      from = from.narrow(dim, r.global_start[d], r.size[d]);
      into = into.narrow(dim, r.local_start[d], r.size[d]);
    }
    into.copy_(from);
  }
  return piece;
}

Trainee parallel_trainee() { return {parallel_model, parallel_batch}; }

ParallelRun::ParallelRun(const Trainee& trainee, const Mesh& mesh, bool deterministic,
                         const std::vector<MakeStrategy>& make)
    : trainee_(trainee),
      mesh_(mesh),
      deterministic_(deterministic),
      model_(trainee.model()),
      ctx_(trainee.table ? trainee.table : std::make_shared<OpTable>(), Random(1)) {
  ctx_.compute = at::kDouble;
  fill(*model_, at::kDouble);
  layout = Layout::of(*model_);
  units_ = std::make_unique<ModelProgram>(*model_, ctx_);
  for (const auto& one : make)
    strategies_.push_back(one({&mesh, deterministic, model_->token_local(), at::kDouble, model_->depth()}));
  for (auto it = strategies_.rbegin(); it != strategies_.rend(); ++it) (*it)->claim(layout);
  for (auto& strategy : strategies_) strategy->shard(layout);
  wraps_ = in_order_of_wrapping(strategies_);
  for (auto* strategy : wraps_) units_->wrap(*strategy);
  if (!strategies_.empty()) parameters_changed();
}

void ParallelRun::parameters_changed() {
  torch::NoGradGuard no_grad;
  for (auto& entry : layout.entries) entry.tensor.unsafeGetTensorImpl()->bump_version();
  for (auto& strategy : strategies_) strategy->parameters_changed();
}

bool ParallelRun::in_step() const {
  return std::any_of(strategies_.begin(), strategies_.end(), [](const auto& one) { return one->in_step(); });
}

// This rank's share of the run's loss: ranks along tensor and context compute the same one.
Tensor ParallelRun::loss(const Stream& stream, const Outputs& outputs, const Batch& batch) {
  Tensors of_sizes;
  for (const auto& part : batch) {
    const auto prediction = of_part(outputs, batch, of_sizes.size()).at("prediction");
    of_sizes.push_back((prediction - part.at("target")).square().flatten(1).mean(1));
  }
  auto loss_B = of_sizes.size() == 1 ? of_sizes[0] : torch::cat(of_sizes);
  for (const auto& [name, more] : stream.auxiliary_losses) loss_B = loss_B + more;
  for (size_t i = 0; i < batch.ids.size(); ++i)
    if (batch.weights[i] != 0) losses[batch.ids[i]] = loss_B[static_cast<int64_t>(i)].item<double>();
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
  losses.clear();
  accumulations_.assign(layout.entries.size(), Tensor());
  for (auto& entry : layout.entries) {
    entry.tensor.mutable_grad().reset();
    entry.parameter.leaf().mutable_grad().reset();
    entry.summed.clear();
    for (auto& strategy : strategies_) entry.summed.merge(strategy->sums(entry, plan));
    left_.push_back(entry.summed);
  }
  for (auto& strategy : strategies_) strategy->begin_step(plan);
  run_micro_batches(plan);
  for (auto& strategy : strategies_) strategy->sync_gradients();
  torch::NoGradGuard no_grad;
  for (size_t i = 0; i < accumulations_.size(); ++i)
    if (accumulations_[i].defined()) layout.entries[i].tensor.mutable_grad() = accumulations_[i];
  sum(/*data_axes_alone=*/false);
}

void ParallelRun::run_micro_batches(const StepPlan& plan) {
  const int64_t n = mesh_.data_ranks(), r = mesh_.data_rank();
  const int64_t here = in_step() ? plan.accumulations : plan.mine;
  std::vector<Batch> batches;
  for (int64_t accumulation = 0; accumulation < here; ++accumulation) {
    batches.push_back(trainee_.batch(100 * plan.step + accumulation * n + r));
    if (!plan.runs(accumulation)) batches.back().weights.assign(batches.back().ids.size(), 0.0);
  }
  samples_ = static_cast<double>(plan.micro_batches * trainee_.batch(0).size());
  auto parts = program(plan);
  for (auto& strategy : strategies_)
    if (strategy->train_step(batches, parts, plan)) return;
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
  for (auto& strategy : strategies_) strategy->end_accumulation(accumulation, plan);
  if (deterministic_ && mesh_.data_ranks() > 1) sum(/*data_axes_alone=*/true);
}

AxisSet ParallelRun::open_axes(size_t index, bool data_axes_alone) const {
  AxisSet axes;
  for (const Axis axis : kAxes) {
    const bool is_data = is_data_axis(axis), is_done = is_data && accumulations_[index].defined();
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
  for (auto& strategy : strategies_) strategy->begin_step(plan);
  auto parts = program(plan);
  return predict(trainee_.batch(number), parts);
}

Tensor ParallelRun::predict(const Batch& batch, Program& parts) {
  for (auto& strategy : strategies_)
    if (auto prediction = strategy->predict(batch, parts)) return *prediction;
  auto stream = parts.begin(batch);
  parts.blocks(0, model_->depth(), stream);
  const auto outputs = parts.head(stream, batch);
  Tensors of_sizes;
  for (size_t i = 0; i < std::max<size_t>(batch.parts.size(), 1); ++i)
    of_sizes.push_back(of_part(outputs, batch, i).at("prediction"));
  return of_sizes.size() == 1 ? of_sizes[0] : torch::cat(of_sizes);
}

void ParallelRun::note(const std::string& unit, Stream stream, const Batch& batch, std::vector<Seen>& seen) const {
  for (auto* strategy : wraps_) strategy->join(stream);
  const size_t first = seen.size();
  for (size_t i = 0; i < std::max<size_t>(batch.parts.size(), 1); ++i) {
    Stream own = batch.parts.empty() ? stream : part_of_pack(stream, batch, i);
    for (const Field& field : own.fields()) {
      if (field.role == Role::constant) continue;
      const auto value = field.tensor->detach();
      const auto at = std::find_if(seen.begin() + static_cast<std::ptrdiff_t>(first), seen.end(),
                                   [&](const Seen& one) { return one.field == field.name; });
      if (at == seen.end())
        seen.push_back({unit, field.name, value.clone()});
      else
        at->value = torch::cat({at->value, value});
    }
  }
}

std::vector<ParallelRun::Seen> ParallelRun::trace(int64_t number) {
  torch::NoGradGuard no_grad;
  const StepPlan plan{0, 1, 1, 1, Phase::evaluate};
  for (auto& strategy : strategies_) strategy->begin_step(plan);
  std::vector<Seen> seen;
  const auto traced = trainee_.batch(number);
  auto parts = program(plan);
  parts.begin = [this, &seen, begin = parts.begin](const Batch& batch) {
    running = "condition or tokens";
    auto stream = begin(batch);
    note("tokens", stream, batch, seen);
    return stream;
  };
  parts.blocks = [this, &seen, &traced, blocks = parts.blocks](int64_t first, int64_t last, Stream& stream) {
    for (int64_t i = first; i < last; ++i) {
      running = to_text(Unit{Unit::Kind::block, i});
      blocks(i, i + 1, stream);
      note(running, stream, traced, seen);
    }
  };
  parts.head = [this, head = parts.head](Stream& stream, const Batch& batch) {
    running = "head";
    return head(stream, batch);
  };
  seen.push_back({"head", "prediction", predict(traced, parts)});
  running.clear();
  return seen;
}

}  // namespace ditto::testing
