#include "core/assembly/ema.h"

#include <algorithm>

#include <torch/types.h>

namespace ditto {

Ema::Ema(Layout& layout, const EmaOptions& options) : layout_(layout), options_(options) {
  if (!options_.enabled) return;
  for (const auto& entry : layout_.entries) average_.push_back(entry.tensor.detach().clone());
}

double Ema::decay(int64_t updates) const {
  const auto n = static_cast<double>(updates);
  return options_.warmup ? std::min(options_.decay, (1 + n) / (10 + n)) : options_.decay;
}

void Ema::ask(Update& update, int64_t updates) {
  update.average = average_;
  update.decay = decay(updates);
}

// By value: whoever holds a view of a parameter keeps it, and version counters tell compute copies to follow.
void Ema::swap() {
  if (!options_.enabled) return;
  torch::NoGradGuard no_grad;
  for (size_t i = 0; i < average_.size(); ++i) {
    auto& weight = layout_.entries[i].tensor;
    const auto kept = weight.detach().clone();
    weight.copy_(average_[i]);
    average_[i].copy_(kept);
  }
}

}  // namespace ditto
