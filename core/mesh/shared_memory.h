// CPU tensors between ranks of one machine, through memory that all of them map: what Gloo carries over TCP, in one or
// two copies, and without a call to the kernel where the others are there already.
//
// Every member has a segment (memfd_create: no file has its name, so nothing stays behind whatever ends the process; it
// grows as it is used, and no /dev/shm limits it). A call copies what others are to read into the member's own segment
// and returns. The rest is done by the thread that waits for the result, in the order of calls: a thread beside it
// would take a core from it. Who has to wait sleeps (futex), after a short spin where every rank has a core of its own.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <ditto/parallel/in_place_sum.h>

namespace ditto {

class SharedMemory final : public c10d::Backend, public SumsInPlace {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  // All members meet at `store` and open each other's segments. Null, for all of them alike, where one of them cannot:
  // they are on several machines, or in containers that do not see each other's processes. `spin`: every rank has its
  // own core. Waiting for longer than `timeout`, and for a member whose process has ended, throws
  // c10::DistBackendError, as does a member that sends another number of bytes than is expected of it.
  static c10::intrusive_ptr<SharedMemory> connect(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                  std::chrono::milliseconds timeout, bool spin);
  ~SharedMemory() override;
  const std::string getBackendName() const override { return "shared memory"; }

  // CPU tensors, contiguous. Sums are Gloo's, bit for bit: those of a ring.
  Work allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options = {}) override;
  Work _reduce_scatter_base(at::Tensor& out, at::Tensor& in, const c10d::ReduceScatterOptions& options = {}) override;
  Work _allgather_base(at::Tensor& out, at::Tensor& in, const c10d::AllgatherOptions& options = {}) override;
  Work alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<int64_t>& out_counts, std::vector<int64_t>& in_counts,
                     const c10d::AllToAllOptions& options = {}) override;
  Work broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options = {}) override;
  Work barrier(const c10d::BarrierOptions& options = {}) override;
  Work send(std::vector<at::Tensor>& tensors, int to, int tag) override;
  Work recv(std::vector<at::Tensor>& tensors, int from, int tag) override;

  // In this member's segment, so that the others can read it where it is.
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long numel, at::TensorOptions options = {}) override;

  std::unique_ptr<InPlaceSum> begin_sum(const at::Tensor& x) override;

  class Impl;

 private:
  explicit SharedMemory(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace ditto
