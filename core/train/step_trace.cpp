#include "core/train/step_trace.h"

namespace ditto {

void StepTrace::require_writable() const {
  if (!asked_.file.empty()) ChromeTrace::require_writable(asked_.file);
}

void StepTrace::observe(const report::MemoryMeter& memory) {
  if (asked_.comm) training_.step->meter = &memory;
  if (asked_.kernels || !asked_.file.empty()) training_.step->observers.push_back(&breakdown_.emplace());
}

void StepTrace::begin_step(int64_t last_step) {
  if (!asked_.file.empty() && training_.done + 1 == last_step) chrome_.emplace();
  if (breakdown_) breakdown_->begin();
}

void StepTrace::end_step() {
  if (breakdown_) kernels_ = kernel_counts(breakdown_->take());
}

void StepTrace::add_to(report::StepRecord& record) const {
  if (asked_.kernels) record.kernels = kernels_;
  if (!asked_.comm) return;
  record.comm = comm();
  record.mem = memory_shares();
}

std::string StepTrace::tell() {
  if (chrome_) chrome_->write(asked_.file, training_.mesh);
  chrome_.reset();
  std::string tables;
  if (asked_.comm) tables += comm_table(training_.mesh, comm(), memory_shares()) + "\n";
  if (asked_.kernels) tables += kernel_table(training_.mesh, kernels_) + "\n";
  return tables;
}

std::vector<report::CommCount> StepTrace::comm() const {
  return comm_counts(*training_.assembly->networks, training_.mesh);
}

std::map<std::string, int64_t> StepTrace::memory_shares() const {
  auto shares = held_bytes(*training_.assembly->networks, *training_.optimizer, *training_.ema);
  shares["activations"] = training_.step->activations.value_or(0);
  if (const auto ahead = training_.step->bytes_ahead()) shares["ahead"] = *ahead;
  return shares;
}

}  // namespace ditto
