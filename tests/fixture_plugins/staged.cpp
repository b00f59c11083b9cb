// CUDA tensors between ranks through the host's memory, by Gloo: run.transport = "staged". For tests of several ranks
// on one GPU, which NCCL refuses.
#include <dlfcn.h>

#include <mutex>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <ditto/error.h>
#include <ditto/parallel/transport.h>

#include "tests/support/loopback.h"

namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using Work = c10::intrusive_ptr<c10d::Work>;

// The host waits for the copy. As collectives do, it leaves the versions that autograd counts alone.
void copy_numbers(const Tensor& to, const Tensor& from) {
  const c10::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView plain;
  Tensor(to).copy_(from);
}

Tensor room_on_host(const Tensor& like) { return at::empty(like.sizes(), like.options().device(at::kCPU)); }

Tensors on_host(const Tensors& list) {
  Tensors host;
  for (const auto& x : list) copy_numbers(host.emplace_back(room_on_host(x)), x);
  return host;
}

// A collective of the host's copies: who waits for it brings the results to the GPU.
class Travel final : public c10d::Work {
 public:
  Travel(::Work host, Tensors sent, Tensors arriving, Tensors to)
      : host_(std::move(host)), sent_(std::move(sent)), arriving_(std::move(arriving)), to_(std::move(to)) {}

  bool wait(std::chrono::milliseconds timeout) override {
    const std::lock_guard lock(mutex_);
    if (!host_) return true;
    host_->wait(timeout);
    for (std::size_t i = 0; i < to_.size(); ++i) copy_numbers(to_[i], arriving_[i]);
    for (auto* list : {&sent_, &arriving_, &to_}) list->clear();
    host_.reset();
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }
  bool isCompleted() override {
    const std::lock_guard lock(mutex_);
    return !host_;
  }
  bool isSuccess() const override { return true; }  // wait throws what failed

 private:
  std::mutex mutex_;
  ::Work host_;  // null once the results are there
  Tensors sent_, arriving_, to_;
};

class Group final : public c10d::Backend {
 public:
  Group(c10::intrusive_ptr<c10d::Backend> host, int rank, int size) : Backend(rank, size), host_(std::move(host)) {}

  const std::string getBackendName() const override { return "staged"; }

  Work broadcast(Tensors& list, const c10d::BroadcastOptions& options) override {
    return in_place(list, [&](Tensors& x) { return host_->broadcast(x, options); });
  }
  Work allreduce(Tensors& list, const c10d::AllreduceOptions& options) override {
    return in_place(list, [&](Tensors& x) { return host_->allreduce(x, options); });
  }
  Work _allgather_base(Tensor& to, Tensor& from, const c10d::AllgatherOptions& options) override {
    return between(to, from, [&](Tensor& out, Tensor& in) { return host_->_allgather_base(out, in, options); });
  }
  Work _reduce_scatter_base(Tensor& to, Tensor& from, const c10d::ReduceScatterOptions& options) override {
    return between(to, from, [&](Tensor& out, Tensor& in) { return host_->_reduce_scatter_base(out, in, options); });
  }
  Work alltoall_base(Tensor& to, Tensor& from, std::vector<std::int64_t>& received, std::vector<std::int64_t>& sent,
                     const c10d::AllToAllOptions& options) override {
    return between(to, from,
                   [&](Tensor& out, Tensor& in) { return host_->alltoall_base(out, in, received, sent, options); });
  }
  Work barrier(const c10d::BarrierOptions& options) override { return host_->barrier(options); }

 private:
  template <class Call>
  Work in_place(Tensors& list, const Call& call) {
    finish_last();
    auto x = on_host(list);
    auto work = call(x);
    return last_ = c10::make_intrusive<Travel>(std::move(work), x, x, list);
  }
  template <class Call>
  Work between(Tensor& to, Tensor& from, const Call& call) {
    finish_last();
    auto in = on_host({from});
    auto out = room_on_host(to);
    auto work = call(out, in[0]);
    return last_ = c10::make_intrusive<Travel>(std::move(work), in, Tensors{out}, Tensors{to});
  }
  // The next one may take what it brings before anybody has waited for it, as NCCL's stream allows.
  void finish_last() {
    if (last_) last_->synchronize();
  }

  c10::intrusive_ptr<c10d::Backend> host_;
  Work last_;
};

// LibTorch looks for CUDA once, at its first question. Where tests/mock_gpu is preloaded it is there already.
void open_cuda() {
  if (c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA) || dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_LOCAL)) return;
  throw ditto::Error(ditto::ErrorKind::plugin, "staged", dlerror(), "install LibTorch's CUDA libraries");
}

class Staged final : public ditto::Transport {
 public:
  using Options = ditto::NoOptions;
  Staged(const Options&, const Needs&) { open_cuda(); }

  c10::DeviceType device() const override { return c10::DeviceType::CUDA; }
  const char* backend() const override { return "staged"; }
  c10::intrusive_ptr<c10d::Backend> connect(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            std::chrono::milliseconds timeout) override {
    auto host = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, ditto::test::gloo_on_loopback(timeout));
    return c10::make_intrusive<Group>(std::move(host), rank, size);
  }
  bool shares_devices() const override { return true; }
};

}  // namespace

DITTO_PLUGIN(Transport, Staged, "staged", "1.0.0", "Apache-2.0", "CUDA tensors between ranks, through the host")
