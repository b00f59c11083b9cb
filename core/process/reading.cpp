#include "core/process/reading.h"

#include <utility>

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace ditto {

struct Reading::Copied {
  torch::Tensor numbers;  // its memory stays until it is read
  c10::Event done;
};

Reading::Reading(const torch::Tensor& numbers) : here_(numbers.contiguous()) {
  const auto device = numbers.device();
  if (device.is_cpu()) return;
  const auto there = std::exchange(
      here_, torch::empty(numbers.sizes(), torch::TensorOptions(numbers.scalar_type()).pinned_memory(true)));
  here_.copy_(there, /*non_blocking=*/true);
  copied_ = std::make_unique<Copied>(Copied{there, c10::Event(device.type())});
  copied_->done.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

Reading::~Reading() = default;
Reading::Reading(Reading&&) noexcept = default;
Reading& Reading::operator=(Reading&&) noexcept = default;

torch::Tensor Reading::wait() const {
  if (copied_) copied_->done.synchronize();
  return here_;
}

}  // namespace ditto
