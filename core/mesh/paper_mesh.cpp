#include "core/mesh/paper_mesh.h"

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace ditto {

namespace {

using torch::Tensor;

struct Done final : c10d::Work {
  bool wait(std::chrono::milliseconds) override { return true; }
};
using Work = c10::intrusive_ptr<c10d::Work>;

Work done() { return c10::make_intrusive<Done>(); }

// Every peer sends what this rank has sent, over and over until it is as long as what is awaited.
void repeat_into(const Tensor& out, const Tensor& in) {
  if (out.is_meta() || out.numel() == 0 || in.numel() == 0) return;
  const auto from = in.reshape(-1);
  for (int64_t at = 0; at < out.numel(); at += from.numel()) {
    const int64_t count = std::min(from.numel(), out.numel() - at);
    out.view(-1).narrow(0, at, count).copy_(from.narrow(0, 0, count));
  }
}

class PeersAlike final : public c10d::ProcessGroup {
 public:
  PeersAlike(int rank, int size) : ProcessGroup(rank, size) {}

  Work allreduce(std::vector<Tensor>& tensors, const c10d::AllreduceOptions&) override {
    for (const auto& tensor : tensors) tensor.mul_(getSize());
    return done();
  }
  Work _allgather_base(Tensor& out, Tensor& in, const c10d::AllgatherOptions&) override {
    repeat_into(out, in);
    return done();
  }
  Work _reduce_scatter_base(Tensor& out, Tensor& in, const c10d::ReduceScatterOptions&) override {
    out.copy_(in.view({getSize(), -1})[getRank()].view(out.sizes())).mul_(getSize());
    return done();
  }
  Work alltoall_base(Tensor& out, Tensor& in, std::vector<int64_t>&, std::vector<int64_t>&,
                     const c10d::AllToAllOptions&) override {
    repeat_into(out, in);
    return done();
  }
  Work broadcast(std::vector<Tensor>&, const c10d::BroadcastOptions&) override { return done(); }
  Work barrier(const c10d::BarrierOptions&) override { return done(); }
};

}  // namespace

PaperMesh::PaperMesh(Degrees degrees, std::map<Axis, int> place, Peers peers)
    : degrees_(std::move(degrees)), place_(std::move(place)), peers_(peers) {
  for (const Axis axis : kAxes) {
    rank_ = rank_ * size(axis) + index(axis);
    ranks_ *= size(axis);
  }
}

int PaperMesh::index(Axis axis) const {
  const auto at = place_.find(axis);
  return at == place_.end() ? 0 : at->second;
}

const Group& PaperMesh::group(const AxisSet& axes) const {
  if (const auto at = groups_.find(axes); at != groups_.end()) return at->second;
  int rank = 0, size = 1;
  std::string label;
  for (const Axis axis : axes) {
    if (this->size(axis) == 1) continue;
    rank = rank * this->size(axis) + index(axis);
    size *= this->size(axis);
    label += (label.empty() ? "" : "+") + std::string(name(axis));
  }
  if (size == 1) return groups_[axes];
  c10::intrusive_ptr<c10d::ProcessGroup> transport;
  if (peers_ == Peers::alike)
    transport = c10::make_intrusive<PeersAlike>(rank, size);
  else
    transport = c10::make_intrusive<c10d::ProcessGroup>(rank, size);  // without a backend: whoever talks is told so
  return groups_.try_emplace(axes, rank, size, label, std::move(transport)).first->second;
}

}  // namespace ditto
