#include "core/train/step_batches.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/assembly/agreed_samples.h"

namespace ditto {

StepBatches::StepBatches(Assembly& assembly, Loader& loader, const StepShares& shares)
    : assembly_(assembly), loader_(loader), shares_(shares) {
  if (assembly.recipe.loader.encode_ahead > 0) side_.emplace(assembly.main->ctx->device);
}

StepBatches::Read StepBatches::read(const StepShares::Step& step, int64_t first) {
  std::vector<std::shared_ptr<BatchJob>> mine, idle;
  for (int64_t accumulation = 0; accumulation < accumulations(step.plan); ++accumulation)
    (step.plan.runs(accumulation) ? mine : idle).push_back(loader_.read(shares_.mine(step, accumulation)));
  Read read;
  read.left_out = agree_on_samples(assembly_.mesh, {first, shares_.batch()}, mine);
  for (const auto& job : mine) read.mine.push_back(job->result());
  for (const auto& job : idle) {
    job->leave_out(read.left_out);
    read.idle.push_back(job->result());
  }
  return read;
}

Batch StepBatches::encoded(const Batch& read) const {
  return assembly_.networks->encode(read.to(assembly_.main->ctx->device), Phase::train);
}

// Each is let go of once it is encoded.
std::vector<Batch> StepBatches::encoded(std::vector<Batch> mine, std::vector<Batch> idle) const {
  std::vector<Batch> batches;
  for (auto* reads : {&mine, &idle})
    for (auto& read : *reads) batches.push_back(encoded(std::exchange(read, {})));
  return batches;
}

Batch StepBatches::encode(const Batch& read) {
  wait();
  auto batch = encoded(read);
  shares_.weigh(batch);
  return batch;
}

StepBatches::Loaded StepBatches::load(const StepShares::Step& step, int64_t first,
                                      const std::function<void(const Batch&)>& has_read) {
  if (side_) side_->wait();
  if (ahead_ && (ahead_->step != step.plan.step || ahead_->first != first)) ahead_.reset();
  const bool is_ahead = ahead_.has_value();
  Read read = is_ahead ? std::move(ahead_->read) : this->read(step, first);
  leave_out(assembly_.mesh, loader_, read.left_out);
  for (const auto& one : read.mine) has_read(one);
  const auto own = read.mine.size();
  auto batches = is_ahead ? taken_over() : encoded(std::move(read.mine), std::move(read.idle));
  for (auto& batch : batches) shares_.weigh(batch);
  for (size_t i = own; i < batches.size(); ++i) std::fill(batches[i].weights.begin(), batches[i].weights.end(), 0.0);
  const double weight = shares_.weight(step, read.left_out);
  // Of a batch without a single sample all gradients are zero, and it is skipped.
  return {std::move(batches), weight > 0 ? weight : 1.0, std::move(read.left_out)};
}

std::vector<Batch> StepBatches::taken_over() {
  auto batches = std::move(ahead_->batches);
  ahead_.reset();
  side_->finish();
  for (const auto& batch : batches)
    for (const auto& part : batch)
      for (const auto& [name, tensor] : part.tensors) side_->take_over(tensor);
  return batches;
}

void StepBatches::begin(const StepShares::Step& step, int64_t first) {
  if (!side_ || step.micro_batches.empty()) return;
  side_->wait();
  ahead_ = Ahead{step.plan.step, first, read(step, first), {}};
  side_->begin([this] { ahead_->batches = encoded(ahead_->read.mine, std::move(ahead_->read.idle)); });
}

void StepBatches::wait() {
  if (!side_) return;
  const auto& encoders = assembly_.networks->encoders;
  if (std::any_of(encoders.begin(), encoders.end(), [](const auto& one) { return !one->strategies.empty(); }))
    side_->finish();
  else
    side_->wait();
}

int64_t StepBatches::bytes_ahead() const {
  if (!ahead_ || is_encoding()) return 0;
  const auto device = assembly_.main->ctx->device.type();
  std::set<const void*> seen;
  int64_t bytes = 0;
  for (const auto& batch : ahead_->batches)
    for (const auto& part : batch)
      for (const auto& [name, tensor] : part.tensors)
        if (tensor.device().type() == device && seen.insert(tensor.storage().unsafeGetStorageImpl()).second)
          bytes += static_cast<int64_t>(tensor.storage().nbytes());
  return bytes;
}

}  // namespace ditto
