// CUDA tensors between ranks, by NVIDIA's NCCL through LibTorch's ProcessGroupNCCL.
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <ditto/error.h>
#include <ditto/parallel/transport.h>

namespace ditto {
namespace {

class Nccl final : public Transport {
 public:
  using Options = NoOptions;
  Nccl(const Options&, const Needs&) {}

  c10::DeviceType device() const override { return c10::DeviceType::CUDA; }
  const char* backend() const override { return "nccl"; }

  c10::intrusive_ptr<c10d::Backend> connect(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            std::chrono::milliseconds timeout) override {
    // What is sent is waited for: its kernels go before those that compute.
    auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
    options->timeout = timeout;
    return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
  }
};

}  // namespace
}  // namespace ditto

DITTO_PLUGIN(Transport, ditto::Nccl, "nccl", "1.0.0", "Apache-2.0", "CUDA tensors between ranks, by NCCL")
