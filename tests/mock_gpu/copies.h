// Copies between the host and mock GPUs, counted and held against the order of streams.
#pragma once

#include <ATen/core/Tensor.h>

namespace mock_gpu {

// While it lives, what this thread copies is the mock's own business: neither counted nor ordered.
class Emulating {
 public:
  Emulating() { ++depth_; }
  ~Emulating() { --depth_; }
  Emulating(const Emulating&) = delete;
  Emulating& operator=(const Emulating&) = delete;
  static int depth() { return depth_; }

 private:
  static thread_local int depth_;
};

// Tensor::copy_. With `later` the host does not wait, where its side of the copy is pinned: a download's numbers are
// there once it has waited for the stream, and until then the tensor holds nan, or -1; an upload's must stay until
// then.
at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool later);

// Where a new tensor is made: of the current GPU where `gpu` is -1.
at::Tensor empty_on(c10::DeviceIndex gpu, at::IntArrayRef size, std::optional<at::IntArrayRef> stride,
                    at::ScalarType dtype, std::optional<at::MemoryFormat> format);

}  // namespace mock_gpu
