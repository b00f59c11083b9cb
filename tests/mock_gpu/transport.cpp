// Mock GPUs, for tests of the program on machines without one: run.device = "cuda" with run.transport = "mock_gpu".
// Opening this library makes LibTorch's device type CUDA one whose memory is closed to the host and whose operations
// are the CPU's; what ranks send one another goes through the host's memory, by Gloo, in a stream of its own, as NCCL's
// does.
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <ditto/parallel/transport.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>

#include <mutex>

#include "tests/mock_gpu/copies.h"
#include "tests/mock_gpu/counts.h"
#include "tests/mock_gpu/device.h"
#include "tests/mock_gpu/memory.h"
#include "tests/support/loopback.h"

namespace mock_gpu {

namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using Work = c10::intrusive_ptr<c10d::Work>;

// A collective that is under way: the stream that waits for it has its results.
class Travel final : public c10d::Work {
 public:
  Travel(mock_gpu::Work host, Tensors sent, Tensors arriving, Tensors to, Clock done)
      : host_(std::move(host)),
        sent_(std::move(sent)),
        arriving_(std::move(arriving)),
        to_(std::move(to)),
        done_(std::move(done)) {}

  bool wait(std::chrono::milliseconds timeout) override {
    arrive(timeout);
    order().wait(current_stream(to_.front().device().index()), done_);
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }
  bool isCompleted() override { return host_->isCompleted(); }
  bool isSuccess() const override { return host_->isSuccess(); }

  void arrive(std::chrono::milliseconds timeout) {
    const std::lock_guard lock(mutex_);
    if (has_arrived_) return;
    host_->wait(timeout);
    const c10::NoGradGuard no_grad;
    const Emulating own;
    for (std::size_t i = 0; i < to_.size(); ++i) copy(to_[i], arriving_[i], false);
    has_arrived_ = true;
  }
  bool has_arrived() const {
    const std::lock_guard lock(mutex_);
    return has_arrived_;
  }
  bool brings(const Tensors& list) const {
    return std::any_of(list.begin(), list.end(), [&](const Tensor& x) {
      return std::any_of(to_.begin(), to_.end(),
                         [&](const Tensor& to) { return to.storage().is_alias_of(x.storage()); });
    });
  }

 private:
  mutable std::mutex mutex_;
  bool has_arrived_ = false;
  mock_gpu::Work host_;
  Tensors sent_, arriving_, to_;  // to_: the GPU's, and the others the host's
  Clock done_;
};

class Group final : public c10d::Backend {
 public:
  Group(c10::intrusive_ptr<c10d::Backend> host, int rank, int size) : Backend(rank, size), host_(std::move(host)) {}

  const std::string getBackendName() const override { return "mock_gpu"; }

  Work broadcast(Tensors& list, const c10d::BroadcastOptions& options) override {
    return in_place("a broadcast", list, [&](Tensors& x) { return host_->broadcast(x, options); });
  }
  Work allreduce(Tensors& list, const c10d::AllreduceOptions& options) override {
    return in_place("an all-reduce", list, [&](Tensors& x) { return host_->allreduce(x, options); });
  }
  Work _allgather_base(Tensor& to, Tensor& from, const c10d::AllgatherOptions& options) override {
    return between("an all-gather", to, from,
                   [&](Tensor& out, Tensor& in) { return host_->_allgather_base(out, in, options); });
  }
  bool supportsCoalescing() const override { return true; }
  Work allgather_into_tensor_coalesced(Tensors& to, Tensors& from, const c10d::AllgatherOptions& options) override {
    const auto done = launched("all-gathers", from, to);
    auto in = on_host(from);
    Tensors out;
    for (const auto& x : to) out.push_back(at::empty(x.sizes(), in[0].options()));
    auto work = host_->allgather_into_tensor_coalesced(out, in, options);
    return under_way(std::move(work), in, out, to, done);
  }
  Work _reduce_scatter_base(Tensor& to, Tensor& from, const c10d::ReduceScatterOptions& options) override {
    return between("a reduce-scatter", to, from,
                   [&](Tensor& out, Tensor& in) { return host_->_reduce_scatter_base(out, in, options); });
  }
  Work alltoall_base(Tensor& to, Tensor& from, std::vector<std::int64_t>& received, std::vector<std::int64_t>& sent,
                     const c10d::AllToAllOptions& options) override {
    return between("an all-to-all", to, from,
                   [&](Tensor& out, Tensor& in) { return host_->alltoall_base(out, in, received, sent, options); });
  }
  Work barrier(const c10d::BarrierOptions& options) override { return host_->barrier(options); }

 private:
  template <class Call>
  Work in_place(const char* what, Tensors& list, const Call& call) {
    const auto done = launched(what, list, list);
    auto x = on_host(list);
    auto work = call(x);
    return under_way(std::move(work), x, x, list, done);
  }
  template <class Call>
  Work between(const char* what, Tensor& to, Tensor& from, const Call& call) {
    const auto done = launched(what, {from}, {to});
    auto in = on_host({from});
    auto out = at::empty(to.sizes(), in[0].options());
    auto work = call(out, in[0]);
    return under_way(std::move(work), in, {out}, {to}, done);
  }

  // In the stream of collectives, after what the current one has done; those before are done with these tensors.
  Clock launched(const char* what, const Tensors& from, const Tensors& to) {
    {
      const std::lock_guard lock(mutex_);
      for (const auto& travel : under_way_)
        if (travel->brings(from) || travel->brings(to)) travel->arrive(kNoTimeout);
      std::erase_if(under_way_, [](const auto& travel) { return travel->has_arrived(); });
    }
    ++counts().launches;
    const auto gpu = from.front().device().index();
    const auto stream = stream_of_collectives(gpu);
    order().wait(stream, order().now(current_stream(gpu)));
    std::vector<Access> accesses;
    for (const bool writes : {false, true})
      for (const auto& x : writes ? to : from) {
        if (const auto use = access(x, writes)) accesses.push_back(*use);
        memory().recordStream(x.storage().data_ptr(), c10::Stream(c10::Stream::UNSAFE, x.device(), stream % kStreams));
      }
    order().launch(stream, accesses, what);
    return order().now(stream);
  }

  static Tensors on_host(const Tensors& list) {
    const c10::NoGradGuard no_grad;
    const Emulating own;
    Tensors host;
    for (const auto& x : list) {
      auto numbers = at::empty(x.sizes(), x.options().device(at::kCPU));
      host.push_back(copy(numbers, x, false));
    }
    return host;
  }

  Work under_way(Work work, Tensors sent, Tensors arriving, Tensors to, Clock done) {
    auto travel = c10::make_intrusive<Travel>(std::move(work), std::move(sent), std::move(arriving), std::move(to),
                                              std::move(done));
    const std::lock_guard lock(mutex_);
    under_way_.push_back(travel);
    return travel;
  }

  c10::intrusive_ptr<c10d::Backend> host_;
  std::mutex mutex_;
  std::vector<c10::intrusive_ptr<Travel>> under_way_;
};

class MockGpu final : public ditto::Transport {
 public:
  using Options = ditto::NoOptions;
  MockGpu(const Options&, const Needs&) {}

  c10::DeviceType device() const override { return kDevice; }
  const char* backend() const override { return "mock_gpu"; }
  c10::intrusive_ptr<c10d::Backend> connect(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            std::chrono::milliseconds timeout) override {
    auto host = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, ditto::test::gloo_on_loopback(timeout));
    return c10::make_intrusive<Group>(std::move(host), rank, size);
  }
};

}  // namespace
}  // namespace mock_gpu

DITTO_PLUGIN(Transport, mock_gpu::MockGpu, "mock_gpu", "1.0.0", "Apache-2.0", "GPUs that are none, for tests")
