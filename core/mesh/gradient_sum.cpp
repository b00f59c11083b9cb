#include "core/mesh/gradient_sum.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include <torch/types.h>

#include <ditto/math/threads.h>
#include <ditto/upload.h>

#include "core/mesh/exact_norm.h"

namespace ditto {

using torch::Tensor;

namespace {

int64_t numel(const std::vector<LayoutEntry*>& entries) {
  int64_t sum = 0;
  for (const auto* entry : entries) sum += entry->tensor.numel();
  return sum;
}

// .grad of each entry becomes its piece of `flat`.
void unflatten(const Tensor& flat, const std::vector<LayoutEntry*>& entries) {
  int64_t at = 0;
  for (auto* entry : entries) {
    entry->tensor.mutable_grad() = flat.narrow(0, at, entry->tensor.numel()).view(entry->tensor.sizes());
    at += entry->tensor.numel();
  }
}

// The same, in the memory that it has: of a larger tensor a piece that is replaced would stay all the same.
void copy_back(const Tensor& flat, const std::vector<LayoutEntry*>& entries) {
  int64_t at = 0;
  for (auto* entry : entries) {
    entry->tensor.mutable_grad().copy_(flat.narrow(0, at, entry->tensor.numel()).view(entry->tensor.sizes()));
    at += entry->tensor.numel();
  }
}

// What goes into one tensor: the axes to sum over, the dtype, and the memory.
using Key = std::tuple<AxisSet, at::ScalarType, at::DeviceType>;
using Groups = std::map<Key, std::vector<LayoutEntry*>>;

Key key_of(AxisSet axes, const Tensor& tensor) {
  return {std::move(axes), tensor.scalar_type(), tensor.device().type()};
}

std::string plugin_key(const ParallelStrategy& strategy) {
  return strategy.axis() ? "parallel." + std::string(name(*strategy.axis())) + "_plugin" : "a strategy without an axis";
}

[[noreturn]] void refuse_two(const LayoutEntry& entry, Axis axis, const ParallelStrategy& one,
                             const ParallelStrategy& other) {
  throw Error(ErrorKind::config, plugin_key(other),
              "sums the gradient of \"" + entry.name + "\" along " + name(axis) + ", and so does " + plugin_key(one) +
                  ": it would be summed twice",
              "choose a plugin for one of them that leaves this sum to the other");
}

}  // namespace

GradientSum::GradientSum(Layout& layout, const Mesh& mesh, bool deterministic, SumOrder order)
    : layout_(layout), mesh_(mesh), deterministic_(deterministic), order_(order) {}
GradientSum::~GradientSum() = default;

// The entries' gradients one after another; `nothing` where there is none: of a chain the neutral number of
// floating-point addition (x + (-0) is x for every x, and -0 too stays what it is), of a tree what its leaves begin
// with.
Tensor GradientSum::flatten(const std::vector<LayoutEntry*>& entries) const {
  const auto flat = torch::empty({numel(entries)}, entries.front()->tensor.options().requires_grad(false));
  int64_t at = 0;
  for (const auto* entry : entries) {
    const auto& grad = entry->tensor.grad();
    const auto place = flat.narrow(0, at, entry->tensor.numel());
    if (grad.defined())
      place.view(entry->tensor.sizes()).copy_(grad);
    else
      place.fill_(nothing());
    at += entry->tensor.numel();
  }
  return flat;
}

void GradientSum::begin_step(const std::vector<std::shared_ptr<ParallelStrategy>>& strategies, const StepPlan& plan) {
  declared_.clear();
  for (auto& entry : layout_.entries) {
    std::map<Axis, const ParallelStrategy*> owners;
    for (const auto& strategy : strategies)
      for (const Axis axis : strategy->sums(entry, plan))
        if (const auto [it, is_first] = owners.emplace(axis, strategy.get()); !is_first && mesh_.size(axis) > 1)
          refuse_two(entry, axis, *it->second, *strategy);
    entry.summed.clear();
    for (const auto& [axis, owner] : owners) entry.summed.insert(axis);
    declared_.push_back(entry.summed);
  }
}

void GradientSum::check_declared() const {
  for (size_t i = 0; i < declared_.size(); ++i)
    if (layout_.entries[i].summed != declared_[i])
      throw Error(ErrorKind::plugin, "parameter \"" + layout_.entries[i].name + "\"",
                  "a strategy says in the middle of a step that it has summed the gradient",
                  "strategies declare what they sum by ParallelStrategy::sums, so that no two do");
}

AxisSet GradientSum::open_axes(const LayoutEntry& entry, bool data) const {
  AxisSet axes;
  for (const Axis axis : kAxes)
    if (mesh_.size(axis) > 1 && is_data_axis(axis) == data && entry.is_copy(axis) && entry.summed.count(axis) == 0)
      axes.insert(axis);
  return axes;
}

void GradientSum::collect_parts() {
  Groups groups;
  for (auto& entry : layout_.entries) {
    if (!entry.tensor.requires_grad()) continue;
    const auto axes = open_axes(entry, true);
    if (!axes.empty()) groups[key_of(axes, entry.tensor)].push_back(&entry);
  }
  parts_.clear();
  for (auto& [key, entries] : groups) {
    const AxisSet& axes = std::get<AxisSet>(key);
    OrderedSum sum(mesh_.group(axes), numel(entries), order_);
    parts_.push_back(std::make_unique<Part>(Part{axes, std::move(entries), std::move(sum), {}}));
  }
}

// Members' data ranks rise, so those that have a micro-batch in this accumulation are the first ones. Along axes that
// are not summed over (experts lent out, shards) a gradient holds all ranks' parts already: the first of them has one
// if any.
int GradientSum::active_members(const AxisSet& axes, int64_t accumulation, const StepPlan& plan) const {
  const int shards = mesh_.size(Axis::shard), expert_ranks = mesh_.size(Axis::expert);
  const auto range = [&](Axis axis) { return std::pair(0, axes.count(axis) ? mesh_.size(axis) : 1); };
  const auto [first_replica, end_replica] = range(Axis::replicate);
  const auto [first_shard, end_shard] = range(Axis::shard);
  const auto [first_expert_rank, end_expert_rank] = range(Axis::expert);
  int active = 0;
  for (int replica = first_replica; replica < end_replica; ++replica)
    for (int shard = first_shard; shard < end_shard; ++shard)
      for (int expert_rank = first_expert_rank; expert_rank < end_expert_rank; ++expert_rank)
        active += accumulation * mesh_.data_ranks() + (replica * shards + shard) * expert_ranks + expert_rank <
                  plan.micro_batches;
  return active;
}

void GradientSum::after_micro_batch(int64_t accumulation, const StepPlan& plan) {
  torch::NoGradGuard no_grad;
  if (!deterministic_) return;
  if (order_ == SumOrder::tree) add_here();
  if (mesh_.data_ranks() == 1) return;
  if (accumulation == 0) collect_parts();
  receive_accumulation();
  for (const auto& part : parts_) {
    part->sent = flatten(part->entries);
    for (auto* entry : part->entries) entry->tensor.mutable_grad().reset();
    part->sum.send(part->sent, active_members(part->axes, accumulation, plan));
  }
}

// What no other data rank has a share of: of one data rank all, and experts that are here alone, whose gradient is of
// the micro-batches of all ranks that send them rows. Autograd would add the next micro-batch's onto them.
void GradientSum::add_here() {
  here_.resize(layout_.entries.size());
  for (size_t i = 0; i < here_.size(); ++i) {
    auto& entry = layout_.entries[i];
    if (!entry.tensor.requires_grad() || entry.is_summed_over_data() || !open_axes(entry, true).empty()) continue;
    auto grad = std::exchange(entry.tensor.mutable_grad(), Tensor());
    here_[i].add(grad.defined() ? grad
                                : torch::zeros(entry.tensor.sizes(), entry.tensor.options().requires_grad(false)));
  }
}

void GradientSum::receive_accumulation() {
  for (const auto& part : parts_) {
    if (!part->sent.defined()) continue;
    part->sum.receive();
    part->sent.reset();
  }
}

void GradientSum::finish(const StepPlan&) {
  torch::NoGradGuard no_grad;
  receive_accumulation();
  check_declared();
  for (const auto& part : parts_) unflatten(part->sum.gather(), part->entries);
  for (size_t i = 0; i < here_.size(); ++i)
    if (here_[i].pieces() > 0) layout_.entries[i].tensor.mutable_grad() = here_[i].take();
  for (auto& entry : layout_.entries) {
    auto& tensor = entry.tensor;
    if (tensor.requires_grad() && !tensor.grad().defined())  // no part of this rank's loss
      tensor.mutable_grad() = torch::full(tensor.sizes(), nothing(), tensor.options().requires_grad(false));
  }
  sum_copies();
  parts_.clear();
}

void GradientSum::sum_copies() {
  Groups groups;
  for (auto& entry : layout_.entries) {
    if (!entry.tensor.requires_grad()) continue;
    auto axes = open_axes(entry, false);
    if (!deterministic_) axes.merge(open_axes(entry, true));
    if (!axes.empty()) groups[key_of(axes, entry.tensor)].push_back(&entry);
  }
  for (const auto& [key, entries] : groups)
    copy_back(mesh_.group(std::get<AxisSet>(key)).all_reduce(flatten(entries)), entries);
}

namespace {

// Of numbers that follow one another, in one pass. Squares of fp32 numbers are exact in fp64; sixteen sums are kept,
// whatever a vector holds, so that bits do not depend on the processor. Vectors by hand: the host is not compiled to be
// fast.
#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
double
sum_of_squares(const float* x, int64_t count) {
  using Floats [[gnu::vector_size(32)]] = float;
  using Doubles [[gnu::vector_size(64)]] = double;
  constexpr int64_t kSums = 16;
  Doubles low = {}, high = {};
  int64_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    Floats first, second;
    std::memcpy(&first, x + i, sizeof first);
    std::memcpy(&second, x + i + kSums / 2, sizeof second);
    const auto a = __builtin_convertvector(first, Doubles), b = __builtin_convertvector(second, Doubles);
    low += a * a, high += b * b;
  }
  double sums[kSums];
  std::memcpy(sums, &low, sizeof low);
  std::memcpy(sums + kSums / 2, &high, sizeof high);
  for (; i < count; ++i) sums[i % kSums] += static_cast<double>(x[i]) * x[i];
  double sum = 0;
  for (const double one : sums) sum += one;
  return sum;
}

// Of each gradient. Pieces of all of them are shared among threads at once: most are small.
std::vector<double> sums_of_squares(const std::vector<Tensor>& gradients) {
  constexpr int64_t kPiece = 1 << 16;
  struct Piece {
    size_t of;
    const float* x;
    int64_t count;
    double sum = 0;
  };
  std::vector<Piece> pieces;
  std::vector<Tensor> kept,
      others;                  // what pieces are of; sums of other dtypes and devices: a host waits for all at once
  std::vector<size_t> places;  // of the others
  for (size_t i = 0; i < gradients.size(); ++i) {
    const auto x = gradients[i].contiguous();
    if (!x.is_cpu() || x.scalar_type() != torch::kFloat) {
      const auto sum = x.to(torch::kDouble).square().sum();
      others.push_back(others.empty() ? sum : sum.to(others.front().device()));
      places.push_back(i);
      continue;
    }
    kept.push_back(x);
    for (int64_t begin = 0; begin < x.numel(); begin += kPiece)
      pieces.push_back({i, x.const_data_ptr<float>() + begin, std::min(kPiece, x.numel() - begin)});
  }
  in_threads(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      auto& piece = pieces[static_cast<size_t>(i)];
      piece.sum = sum_of_squares(piece.x, piece.count);
    }
  });
  std::vector<double> sums(gradients.size());
  for (const auto& piece : pieces) sums[piece.of] += piece.sum;
  if (others.empty()) return sums;
  const auto numbers = torch::stack(others).cpu();
  for (size_t i = 0; i < others.size(); ++i) sums[places[i]] = numbers.data_ptr<double>()[i];
  return sums;
}

}  // namespace

namespace {

// Along these axes ranks hold different parameters. Data ranks with copies all compute the same sum, from the same
// bits.
AxisSet axes_of_norm(const Layout& layout) {
  AxisSet axes{Axis::pipeline, Axis::expert, Axis::tensor};
  for (const auto& entry : layout.entries)
    for (const auto& [axis, cut] : entry.cuts) axes.insert(axis);
  return axes;
}

bool has_double(const Layout& layout) {
  return std::any_of(layout.entries.begin(), layout.entries.end(),
                     [](const auto& entry) { return entry.tensor.scalar_type() == torch::kDouble; });
}

// Those that are there, and how many ranks have a copy of each.
struct Gradients {
  std::vector<Tensor> list;
  std::vector<double> copies;
};

Gradients gradients_of(const Layout& layout, const Mesh& mesh, const AxisSet& axes) {
  Gradients all;
  for (const auto& entry : layout.entries) {
    if (!entry.tensor.grad().defined()) continue;
    all.list.push_back(entry.tensor.grad());
    all.copies.push_back(1);
    for (const Axis axis : axes)
      if (entry.is_copy(axis)) all.copies.back() *= mesh.size(axis);
  }
  return all;
}

}  // namespace

double grad_norm(const Layout& layout, const Mesh& mesh, bool exact) {
  torch::NoGradGuard no_grad;
  const auto axes = axes_of_norm(layout);
  if (exact) return exact_norm(layout, mesh, axes);
  const auto [gradients, copies] = gradients_of(layout, mesh, axes);
  const auto squares = sums_of_squares(gradients);
  double sum = 0;
  for (size_t i = 0; i < copies.size(); ++i) sum += squares[i] / copies[i];
  const auto total = mesh.group(axes).all_reduce(torch::tensor({sum}, torch::kDouble)).item<double>();
  const double norm = std::sqrt(total);
  return has_double(layout) ? norm : static_cast<double>(static_cast<float>(norm));
}

Tensor grad_norm_on(torch::Device device, const Layout& layout, const Mesh& mesh, const OpTable& ops, bool exact) {
  if (device.is_cpu()) return torch::scalar_tensor(grad_norm(layout, mesh, exact), torch::kDouble);
  torch::NoGradGuard no_grad;
  const auto axes = axes_of_norm(layout);
  const auto [gradients, copies] = gradients_of(layout, mesh, axes);
  // By copies, and by the memory they are in: some may be offloaded.
  std::map<std::pair<double, at::DeviceType>, std::vector<Tensor>> lists;
  for (size_t i = 0; i < copies.size(); ++i) lists[{copies[i], gradients[i].device().type()}].push_back(gradients[i]);
  auto total = torch::zeros({1}, torch::TensorOptions(torch::kDouble).device(device));
  for (const auto& [of, list] : lists) total += uploaded(ops.run("square_sum", {list}).at(0), device) / of.first;
  const auto norm = mesh.group(axes).all_reduce(total).squeeze(0).sqrt();
  return has_double(layout) ? norm : norm.to(torch::kFloat).to(torch::kDouble);
}

double clip_factor(double norm, double largest) {
  const double scale = largest / (norm + 1e-6);
  return scale < 1 ? scale : 1;
}

Tensor clip_factor(const Tensor& norm, double largest) {
  const auto scale =
      torch::full_like(norm, largest) / (norm + 1e-6);  // of a number over a tensor LibTorch rounds twice
  return torch::where(scale < 1, scale, torch::ones_like(scale));
}

}  // namespace ditto
