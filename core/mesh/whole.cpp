#include "core/mesh/whole.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include <torch/types.h>

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

// What one rank holds of an entry.
struct Part {
  std::vector<int64_t> shape;
  std::vector<Rectangle> slices;

  int64_t numel() const { return c10::multiply_integers(shape); }
};

nlohmann::json to_json(const Part& part) {
  auto slices = nlohmann::json::array();
  for (const auto& slice : part.slices) slices.push_back({slice.global_start, slice.local_start, slice.size});
  return {part.shape, slices};
}

Part part_of(const nlohmann::json& json) {
  Part part{json.at(0).get<std::vector<int64_t>>(), {}};
  for (const auto& slice : json.at(1))
    part.slices.push_back({slice.at(0).get<std::vector<int64_t>>(), slice.at(1).get<std::vector<int64_t>>(),
                           slice.at(2).get<std::vector<int64_t>>()});
  return part;
}

// The entries that are cut along the same axes, and so lie on the ranks of one group. Its members know of each other
// what they hold.
struct Family {
  const Group* group;
  std::vector<size_t> entries;
  std::vector<std::vector<Part>> parts;  // [member][place in entries]
};

// What goes between one rank and another, one tensor after another in the order of entries.
class Parcels {
 public:
  explicit Parcels(int members) : lengths(static_cast<size_t>(members), 0) {}
  std::vector<int64_t> lengths;  // numbers for, or from, each member
  std::vector<Tensor> numbers;   // flat, member by member

  Tensor joined(const torch::TensorOptions& options) const {
    return numbers.empty() ? torch::empty({0}, options) : torch::cat(numbers);
  }
};

class Whole final : public WholeTensors {
 public:
  Whole(const Layout& layout, const Mesh& mesh) : layout_(layout), mesh_(mesh) {}

  std::vector<Tensor> gather(const std::vector<Tensor>& local) const override {
    torch::NoGradGuard no_grad;
    std::vector<Tensor> result(local.size());
    for (const auto& [axes, family] : introduced()) {
      if (axes.empty()) {
        for (const size_t i : family.entries) result[i] = local[i];
      } else {
        for (const auto& deal : deals(family, local)) gather(family, deal, local, result);
      }
    }
    return result;
  }

  std::vector<Tensor> scatter(const std::vector<Tensor>& whole, const std::vector<Tensor>& local) const override {
    torch::NoGradGuard no_grad;
    std::vector<Tensor> result(local.size());
    for (const auto& [axes, family] : introduced()) {
      if (axes.empty()) {
        for (const size_t i : family.entries) result[i] = whole[i];
      } else {
        for (const auto& deal : deals(family, local)) scatter(family, deal, whole, local, result);
      }
    }
    return result;
  }

  std::vector<bool> here(const std::vector<Tensor>& local) const override {
    std::vector<bool> result(local.size());
    for (const auto& [axes, family] : families()) {
      if (axes.empty())
        for (const size_t i : family.entries) result[i] = local[i].defined();
      else
        for (const auto& deal : deals(family, local))
          for (const size_t place : deal[static_cast<size_t>(family.group->rank())])
            result[family.entries[place]] = true;
    }
    return result;
  }

 private:
  // Tensors of one dtype, and who gets each of them whole: places in the family's entries, by member.
  using Deal = std::vector<std::vector<size_t>>;

  const std::map<AxisSet, Family>& families() const {
    std::call_once(formed_, [&] {
      for (size_t i = 0; i < layout_.entries.size(); ++i) {
        auto& family = families_[axes_cut(layout_.entries[i])];
        family.entries.push_back(i);
      }
      for (auto& [axes, family] : families_) family.group = &mesh_.group(axes);
    });
    return families_;
  }

  // When they are first needed, since all members must talk then.
  const std::map<AxisSet, Family>& introduced() const {
    families();
    std::call_once(introduced_, [&] {
      for (auto& [axes, family] : families_) introduce(family);
    });
    return families_;
  }

  void introduce(Family& family) const {
    auto mine = nlohmann::json::array();
    for (const size_t i : family.entries) {
      const auto& entry = layout_.entries[i];
      mine.push_back(to_json({local_shape(entry), entry.slices()}));
    }
    for (const auto& text : family.group->all_gather_text(mine.dump())) {
      auto& parts = family.parts.emplace_back();
      for (const auto& part : nlohmann::json::parse(text)) parts.push_back(part_of(part));
    }
  }

  // The largest first, each to the member with the least so far.
  std::vector<Deal> deals(const Family& family, const std::vector<Tensor>& local) const {
    std::map<at::ScalarType, std::vector<size_t>> by_dtype;
    for (size_t place = 0; place < family.entries.size(); ++place)
      if (const auto& tensor = local[family.entries[place]]; tensor.defined())
        by_dtype[tensor.scalar_type()].push_back(place);
    std::vector<Deal> result;
    for (auto& [dtype, places] : by_dtype) {
      const auto numel = [&](size_t place) {
        return c10::multiply_integers(layout_.entries[family.entries[place]].full_shape);
      };
      std::stable_sort(places.begin(), places.end(), [&](size_t a, size_t b) { return numel(a) > numel(b); });
      const auto members = static_cast<size_t>(family.group->size());
      Deal deal(members);
      std::vector<int64_t> loads(members, 0);
      for (const size_t place : places) {
        const auto least = static_cast<size_t>(std::min_element(loads.begin(), loads.end()) - loads.begin());
        deal[least].push_back(place);
        loads[least] += numel(place);
      }
      result.push_back(std::move(deal));
    }
    return result;
  }

  void gather(const Family& family, const Deal& deal, const std::vector<Tensor>& local,
              std::vector<Tensor>& result) const {
    const auto me = static_cast<size_t>(family.group->rank());
    Parcels out(family.group->size()), in(family.group->size());
    torch::TensorOptions options;
    for (size_t owner = 0; owner < deal.size(); ++owner) {
      for (const size_t place : deal[owner]) {
        const Tensor flat = local[family.entries[place]].detach().contiguous().view(-1);
        options = flat.options();
        out.numbers.push_back(flat);
        out.lengths[owner] += flat.numel();
        for (size_t from = 0; owner == me && from < deal.size(); ++from)
          in.lengths[from] += family.parts[from][place].numel();
      }
    }
    const Tensor come = family.group->exchange(out.joined(options), out.lengths, in.lengths);
    for (const size_t place : deal[me])
      result[family.entries[place]] = torch::empty(layout_.entries[family.entries[place]].full_shape, options);
    int64_t at = 0;
    for (size_t from = 0; from < deal.size(); ++from) {
      for (const size_t place : deal[me]) {
        const Part& part = family.parts[from][place];
        const Tensor piece = come.narrow(0, at, part.numel()).view(part.shape);
        for (const auto& slice : part.slices)
          block(result[family.entries[place]], slice.global_start, slice.size)
              .copy_(block(piece, slice.local_start, slice.size));
        at += part.numel();
      }
    }
  }

  void scatter(const Family& family, const Deal& deal, const std::vector<Tensor>& whole,
               const std::vector<Tensor>& local, std::vector<Tensor>& result) const {
    const auto me = static_cast<size_t>(family.group->rank());
    Parcels out(family.group->size()), in(family.group->size());
    torch::TensorOptions options;
    for (size_t owner = 0; owner < deal.size(); ++owner) {
      for (const size_t place : deal[owner]) {
        const Tensor& mine = local[family.entries[place]];
        options = mine.options().requires_grad(false);
        in.lengths[owner] += mine.numel();
      }
    }
    for (size_t to = 0; to < deal.size(); ++to) {
      for (const size_t place : deal[me]) {
        const Part& part = family.parts[to][place];
        const Tensor piece = torch::empty(part.shape, options);
        for (const auto& slice : part.slices)
          block(piece, slice.local_start, slice.size)
              .copy_(block(whole[family.entries[place]], slice.global_start, slice.size));
        out.numbers.push_back(piece.view(-1));
        out.lengths[to] += part.numel();
      }
    }
    const Tensor come = family.group->exchange(out.joined(options), out.lengths, in.lengths);
    int64_t at = 0;
    for (const auto& places : deal) {
      for (const size_t place : places) {
        const Tensor& mine = local[family.entries[place]];
        result[family.entries[place]] = come.narrow(0, at, mine.numel()).view(mine.sizes());
        at += mine.numel();
      }
    }
  }

  const Layout& layout_;
  const Mesh& mesh_;
  mutable std::once_flag formed_, introduced_;
  mutable std::map<AxisSet, Family> families_;
};

}  // namespace

// Each number is held by one rank: the others' zeros change none.
Tensor whole(const LayoutEntry& entry, const Tensor& local, const Mesh& mesh) {
  const auto axes = axes_cut(entry);
  if (axes.empty()) return local.detach().clone();
  auto full = torch::zeros(entry.full_shape, local.options().requires_grad(false));
  for (const auto& piece : entry.slices())
    block(full, piece.global_start, piece.size).copy_(block(local.detach(), piece.local_start, piece.size));
  return mesh.group(axes).all_reduce(full);
}

LayoutEntry entry_of(const OptimizerState& state, const LayoutEntry& entry, const Tensor& tensor) {
  if (!state.whole) return state.block > 1 ? entry.in_blocks(state.block) : entry;
  LayoutEntry lies;
  lies.name = entry.name;
  lies.full_shape = tensor.sizes().vec();
  return lies;
}

std::unique_ptr<WholeTensors> make_whole_tensors(const Layout& layout, const Mesh& mesh) {
  return std::make_unique<Whole>(layout, mesh);
}

}  // namespace ditto
