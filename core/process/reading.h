// Numbers on their way from the run's device to the host.
#pragma once

#include <memory>

#include <torch/types.h>

namespace ditto {

// From a GPU they are copied into pinned memory after what was queued before, and who made the reading goes on.
// LibTorch keeps that memory, so that the readings of a training's steps are a ring of as many as are under way. In the
// host's memory it is the tensor itself, which nobody may write meanwhile.
class Reading {
 public:
  explicit Reading(const torch::Tensor& numbers);
  ~Reading();
  Reading(Reading&&) noexcept;
  Reading& operator=(Reading&&) noexcept;

  // Until they are there: in the host's memory, contiguous.
  torch::Tensor wait() const;

 private:
  struct Copied;
  torch::Tensor here_;
  std::unique_ptr<Copied> copied_;  // null: nothing is copied
};

}  // namespace ditto
