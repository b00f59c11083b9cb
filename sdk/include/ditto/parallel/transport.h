// What carries tensors of one kind of device between ranks. Gloo carries CPU tensors and is part of the host; NCCL is a
// plugin, opened where a run computes on CUDA.
#pragma once

#include <chrono>

#include <ditto/plugin.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace ditto {

class DITTO_API Transport {
 public:
  static constexpr const char* kKind = "transport";
  static constexpr std::uint32_t kAbi = 10;
  struct Needs {};
  virtual ~Transport();

  virtual c10::DeviceType device() const = 0;  // whose tensors it carries
  virtual const char* backend() const = 0;     // c10d's name of it: "nccl"
  // A group of `size` ranks that meet at `store` under a prefix of their own. Called by its members only.
  virtual c10::intrusive_ptr<c10d::Backend> connect(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    std::chrono::milliseconds timeout) = 0;
  // Whether several ranks may have one device.
  virtual bool shares_devices() const { return false; }
};

}  // namespace ditto
