#include "core/dist/whole.h"

#include <torch/torch.h>

namespace ditto {

using torch::Tensor;

namespace {

AxisSet axes_cut(const LayoutEntry& entry) {
  AxisSet axes;
  for (const auto& [axis, cut] : entry.cuts) axes.insert(axis);
  return axes;
}

// One of an entry's rectangles, in a whole tensor or in the local one.
Tensor block(Tensor of, const std::vector<int64_t>& start, const std::vector<int64_t>& size) {
  for (size_t dim = 0; dim < size.size(); ++dim) of = of.narrow(static_cast<int64_t>(dim), start[dim], size[dim]);
  return of;
}

// Who works on the next tensor of a group: its members take turns.
class Turns {
 public:
  int owner(const Group& group) { return next_[&group]++ % group.size(); }

 private:
  std::map<const Group*, int> next_;
};

// Each number is held by one rank: the others' zeros change none.
class Whole final : public WholeTensors {
 public:
  Whole(const Layout& layout, const Mesh& mesh) : layout_(layout), mesh_(mesh) {}

  std::vector<Tensor> gather(const std::vector<Tensor>& local) const override {
    std::vector<Tensor> result(local.size());
    Turns turns;
    for (size_t i = 0; i < local.size(); ++i) {
      if (!local[i].defined()) continue;
      const auto& entry = layout_.entries[i];
      const Group& group = mesh_.group(axes_cut(entry));
      const auto all = whole(entry, local[i], mesh_);
      if (turns.owner(group) == group.rank()) result[i] = all;
    }
    return result;
  }

  std::vector<Tensor> scatter(const std::vector<Tensor>& wholes, const std::vector<Tensor>& local) const override {
    std::vector<Tensor> result(local.size());
    Turns turns;
    for (size_t i = 0; i < local.size(); ++i) {
      if (!local[i].defined()) continue;
      const auto& entry = layout_.entries[i];
      const Group& group = mesh_.group(axes_cut(entry));
      const int owner = turns.owner(group);
      const auto all = owner == group.rank() ? wholes[i].contiguous() : torch::empty(entry.full_shape, local[i].options());
      group.broadcast(all, owner);
      result[i] = torch::empty_like(local[i]);
      for (const auto& piece : entry.slices())
        block(result[i], piece.local_start, piece.size).copy_(block(all, piece.global_start, piece.size));
    }
    return result;
  }

 private:
  const Layout& layout_;
  const Mesh& mesh_;
};

}  // namespace

Tensor whole(const LayoutEntry& entry, const Tensor& local, const Mesh& mesh) {
  const auto axes = axes_cut(entry);
  if (axes.empty()) return local.detach().clone();
  auto full = torch::zeros(entry.full_shape, local.options().requires_grad(false));
  for (const auto& piece : entry.slices())
    block(full, piece.global_start, piece.size).copy_(block(local.detach(), piece.local_start, piece.size));
  return mesh.group(axes).all_reduce(full);
}

std::unique_ptr<WholeTensors> make_whole_tensors(const Layout& layout, const Mesh& mesh) {
  return std::make_unique<Whole>(layout, mesh);
}

}  // namespace ditto
