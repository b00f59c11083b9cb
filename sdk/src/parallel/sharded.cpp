#include <ditto/parallel/sharded.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include <torch/types.h>

#include <ditto/error.h>

namespace ditto {

using torch::Tensor;

namespace {

// A parameter's whole values begin where an allocation of its own could: products are computed with the same bits.
constexpr int64_t kAlign = 64;
// Vectors are cut by as many numbers, so that no optimizer's block is cut.
constexpr int64_t kVectorMultiple = 64;
// A gradient that is not there. x + (-0) is x for every x, and -0 too stays what it is; of a tree, in whose leaves sums
// begin with +0, it is that.
double nothing(SumOrder order) { return order == SumOrder::tree ? 0.0 : -0.0; }

int64_t total(const std::vector<int64_t>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
}

// Where the k-th of `count` nearly equal pieces begins.
int64_t bound(int64_t length, int64_t k, int64_t count) { return length * k / count; }

std::vector<int64_t> divide(int64_t length, int64_t count) {
  std::vector<int64_t> lengths;
  for (int64_t k = 0; k < count; ++k) lengths.push_back(bound(length, k + 1, count) - bound(length, k, count));
  return lengths;
}

}  // namespace

ShardedUnit::ShardedUnit(Layout& layout, std::vector<size_t> entries, const ParallelStrategy::Needs& needs, Keep keep)
    : layout_(layout),
      mesh_(*needs.mesh),
      group_(needs.mesh->group(Axis::shard)),
      keep_(keep),
      sum_order_(needs.sum_order) {
  torch::NoGradGuard no_grad;
  std::map<AxisSet, std::vector<Part>> by_axes;
  std::vector<int64_t> shards(group_.size(), 0);
  int64_t place = 0;
  for (const size_t index : entries) {
    Part part = cut(index);
    part.place = place;
    place += (part.bounds.back() + kAlign - 1) / kAlign * kAlign;
    for (int member = 0; member < group_.size(); ++member) shards[member] += part.length(member);
    if (entry(part).tensor.requires_grad()) add_to_sums(part, by_axes);
    parts_.push_back(std::move(part));
  }
  for (auto& [axes, parts] : by_axes) sums_.push_back(make_sum(axes, std::move(parts)));
  longest_ = *std::max_element(shards.begin(), shards.end());
  const auto& tensor = entry(parts_.front()).tensor;
  values_ = torch::empty({place}, tensor.options().dtype(needs.compute).requires_grad(false));
  // variable_data: a version counter of its own. A graph that holds these values is right to use them after they were
  // freed and gathered again.
  for (auto& part : parts_)
    part.values =
        values_.narrow(0, part.place, part.bounds.back()).view(entry(part).parameter.leaf().sizes()).variable_data();
  if (keep == Keep::shard) free_storage(values_);
  if (keep == Keep::shard && tensor.scalar_type() != needs.compute)
    shard_ = torch::empty({longest_}, values_.options());
}

ShardedUnit::~ShardedUnit() = default;

ShardedUnit::Part ShardedUnit::cut(size_t index) {
  auto& entry = layout_.entries[index];
  const Tensor leaf = entry.parameter.leaf();
  Part part{index, {0}, 0, {}};
  Cut piece{0, {leaf.size(0)}, 0, group_.size(), leaf.dim() == 1 ? kVectorMultiple : 1};
  for (piece.index = 0; piece.index < group_.size(); ++piece.index) {
    entry.cuts[Axis::shard] = piece;
    part.bounds.push_back(part.bounds.back() + c10::multiply_integers(local_shape(entry)));
  }
  piece.index = group_.rank();
  entry.cuts[Axis::shard] = piece;
  entry.tensor = ditto::cut(leaf.detach(), piece).requires_grad_(leaf.requires_grad());
  free_storage(leaf);
  return part;
}

// A parameter that is cut along expert is no copy there: its gradient already comes from all of that axis.
void ShardedUnit::add_to_sums(const Part& part, std::map<AxisSet, std::vector<Part>>& by_axes) const {
  AxisSet axes{Axis::shard};
  for (const Axis axis : kDataAxes)
    if (mesh_.size(axis) > 1 && entry(part).is_copy(axis)) axes.insert(axis);
  by_axes[axes].push_back(part);
}

std::unique_ptr<ShardedUnit::Sum> ShardedUnit::make_sum(const AxisSet& axes, std::vector<Part> parts) const {
  std::vector<int64_t> pieces(group_.size(), 0), lengths;
  for (const auto& part : parts)
    for (int member = 0; member < group_.size(); ++member) pieces[member] += part.length(member);
  AxisSet others = axes;
  others.erase(Axis::shard);
  const Group& copies = mesh_.group(others);
  // Members in the order of data ranks: replicate, shard, expert.
  const int expert_ranks = others.count(Axis::expert) ? mesh_.size(Axis::expert) : 1,
            replicas = copies.size() / expert_ranks;
  for (int replica = 0; replica < replicas; ++replica)
    for (const int64_t piece : pieces)
      for (int expert_rank = 0; expert_rank < expert_ranks; ++expert_rank)
        lengths.push_back(divide(piece, copies.size())[replica * expert_ranks + expert_rank]);
  OrderedSum sum(mesh_.group(axes), std::move(lengths), sum_order_);
  return std::make_unique<Sum>(Sum{axes, std::move(parts), &copies, std::move(pieces), std::move(sum), {}});
}

void ShardedUnit::begin_gather() { begin_gathers({this}); }

void ShardedUnit::begin_gathers(const std::vector<ShardedUnit*>& units) {
  std::vector<ShardedUnit*> absent;
  std::vector<Tensor> shards;
  for (auto* unit : units) {
    if (unit->present_ || unit->arrival_) continue;
    absent.push_back(unit);
    shards.push_back(unit->shard_.defined() ? unit->shard_ : unit->pack());
  }
  if (absent.empty()) return;
  auto arrivals = absent[0]->group_.begin_all_gathers(shards);
  for (size_t i = 0; i < absent.size(); ++i) absent[i]->arrival_ = std::move(arrivals[i]);
}

void ShardedUnit::gather() {
  begin_gather();
  if (present_) return;
  unpack(std::exchange(arrival_, nullptr)());
  present_ = true;
}

void ShardedUnit::release() {
  if (!present_) return;
  free_storage(values_);
  present_ = false;
}

void ShardedUnit::refresh() {
  torch::NoGradGuard no_grad;
  if (arrival_) std::exchange(arrival_, nullptr)();  // of old numbers
  if (keep_ == Keep::shard) release();
  present_ = false;
  if (shard_.defined()) shard_.copy_(pack());
  for (const auto& part : parts_) entry(part).parameter.provide(part.values);  // and no copy of old numbers
}

bool ShardedUnit::is_part(const Tensor& tensor) const {
  return tensor.defined() && tensor.storage().is_alias_of(values_.storage());
}

// This rank's rows of all parameters, in the compute dtype.
Tensor ShardedUnit::pack() const {
  torch::NoGradGuard no_grad;
  const auto packed = torch::zeros({longest_}, values_.options());
  int64_t at = 0;
  for (const auto& part : parts_) {
    const auto& rows = entry(part).tensor;
    packed.narrow(0, at, rows.numel()).view(rows.sizes()).copy_(rows);
    at += rows.numel();
  }
  return packed;
}

void ShardedUnit::unpack(const Tensor& gathered) const {
  torch::NoGradGuard no_grad;
  fill_storage(values_);
  for (int member = 0; member < group_.size(); ++member) {
    int64_t at = member * longest_;
    for (const auto& part : parts_) {
      const int64_t length = part.length(member);
      values_.narrow(0, part.place + part.bounds[member], length).copy_(gathered.narrow(0, at, length));
      at += length;
    }
  }
}

void ShardedUnit::begin_step(const StepPlan& plan) {
  plan_ = plan;
  accumulations_ = 0;
}

AxisSet ShardedUnit::sums(const LayoutEntry& of) const {
  for (const auto& sum : sums_)
    for (const auto& part : sum->parts)
      if (entry(part).name == of.name) return sum->axes;
  return {};
}

// Data ranks 0, 1, … have a micro-batch in this accumulation as long as there are any. Of ranks that lend one another
// experts one is enough: an expert's gradient is of all their micro-batches.
int ShardedUnit::active_members(const AxisSet& axes) const {
  const int64_t left = plan_.micro_batches - accumulations_ * mesh_.data_ranks();
  const int64_t step = axes.count(Axis::expert) ? 1 : mesh_.size(Axis::expert);
  return static_cast<int>(std::clamp<int64_t>((left + step - 1) / step, 0, mesh_.group(axes).size()));
}

// The gradients, member by member, as the sum's owners have them. They leave the model's leaves.
Tensor ShardedUnit::flatten(const Sum& sum) const {
  const auto options = entry(sum.parts.front()).parameter.leaf().options().requires_grad(false);
  auto flat = torch::empty({total(sum.pieces)}, options);
  std::vector<int64_t> at(group_.size(), 0);
  for (size_t member = 1; member < at.size(); ++member) at[member] = at[member - 1] + sum.pieces[member - 1];
  for (const auto& part : sum.parts) {
    auto& grad = entry(part).parameter.leaf().mutable_grad();
    const Tensor numbers = grad.defined() ? grad.contiguous().view(-1) : torch::full({1}, nothing(sum_order_), options);
    for (int member = 0; member < group_.size(); ++member) {
      const int64_t length = part.length(member);
      flat.narrow(0, at[member], length)
          .copy_(grad.defined() ? numbers.narrow(0, part.bounds[member], length) : numbers.expand({length}));
      at[member] += length;
    }
    grad.reset();
  }
  const int copies = sum.copies->size();
  if (copies == 1) return flat;
  const int expert_ranks = sum.axes.count(Axis::expert) ? mesh_.size(Axis::expert) : 1;
  const auto of_shards = flat.split_with_sizes(sum.pieces);
  std::vector<Tensor> ordered;
  for (int replica = 0; replica < copies / expert_ranks; ++replica)
    for (const auto& piece : of_shards)
      for (int k = replica * expert_ranks; k < (replica + 1) * expert_ranks; ++k)
        ordered.push_back(piece.slice(0, bound(piece.numel(), k, copies), bound(piece.numel(), k + 1, copies)));
  return torch::cat(ordered);
}

void ShardedUnit::send() {
  torch::NoGradGuard no_grad;
  receive();
  for (const auto& sum : sums_) {
    sum->sent = flatten(*sum);
    sum->sum.send(sum->sent, active_members(sum->axes), "reduce_scatter");
  }
  ++accumulations_;
}

void ShardedUnit::receive() {
  for (const auto& sum : sums_) {
    if (!sum->sent.defined()) continue;
    sum->sum.receive();
    sum->sent.reset();
  }
}

void ShardedUnit::finish() {
  torch::NoGradGuard no_grad;
  receive();
  for (const auto& sum : sums_) {
    Tensor own = sum->sum.take();
    if (sum->copies->size() > 1)
      own = sum->copies->all_gather(own, 0, divide(sum->pieces[group_.rank()], sum->copies->size()));
    int64_t at = 0;
    for (const auto& part : sum->parts) {
      auto& tensor = entry(part).tensor;
      tensor.mutable_grad() = own.narrow(0, at, tensor.numel()).view(tensor.sizes());
      at += tensor.numel();
    }
  }
}

ShardedUnits::ShardedUnits(Layout& layout, const ParallelStrategy::Needs& needs, ShardedUnit::Keep keep) : keep_(keep) {
  std::map<Unit, std::vector<size_t>> members;
  for (size_t i = 0; i < layout.entries.size(); ++i)
    if (!layout.entries[i].full_shape.empty()) members[layout.entries[i].unit].push_back(i);
  for (auto& [unit, entries] : members)
    units_[unit] = std::make_unique<ShardedUnit>(layout, std::move(entries), needs, keep);
}
ShardedUnits::~ShardedUnits() = default;

ShardedUnit* ShardedUnits::find(const Unit& unit) const {
  const auto it = units_.find(unit);
  return it == units_.end() ? nullptr : it->second.get();
}

namespace {

bool is_small(const Unit& unit) { return unit.kind == Unit::condition || unit.kind == Unit::tokens; }

template <class Iterator>
std::vector<ShardedUnit*> up_to_block(Iterator begin, Iterator end) {
  std::vector<ShardedUnit*> list;
  for (; begin != end; ++begin) {
    list.push_back(begin->second.get());
    if (!is_small(begin->first)) break;
  }
  return list;
}

}  // namespace

std::vector<ShardedUnit*> ShardedUnits::after(const Unit& unit) const {
  return up_to_block(units_.upper_bound(unit), units_.end());
}
std::vector<ShardedUnit*> ShardedUnits::before(const Unit& unit) const {
  return up_to_block(std::make_reverse_iterator(units_.lower_bound(unit)), units_.rend());
}
std::vector<ShardedUnit*> ShardedUnits::first() const { return up_to_block(units_.begin(), units_.end()); }

void ShardedUnits::parameters_changed() {
  for (const auto& [unit, sharded] : units_) sharded->refresh();
  if (keep_ == ShardedUnit::Keep::shard) return;
  for (const auto& [unit, sharded] : units_) {
    sharded->begin_gather();
    ShardedUnit::begin_gathers(after(unit));  // they travel while this one is unpacked
    sharded->gather();
  }
}

Tensors ShardedUnits::held() const {
  Tensors all;
  for (const auto& [unit, sharded] : units_)
    for (const auto& tensor : sharded->held())
      if (tensor.defined()) all.push_back(tensor);
  return all;
}

AxisSet ShardedUnits::sums(const LayoutEntry& entry, const StepPlan& plan) const {
  const auto* unit = plan.phase == Phase::train ? find(entry.unit) : nullptr;
  return unit ? unit->sums(entry) : AxisSet();
}

void ShardedUnits::begin_step(const StepPlan& plan) {
  plan_ = plan;
  sending_ = nullptr;
  for (const auto& [unit, sharded] : units_) sharded->begin_step(plan);
}

void ShardedUnits::send_gradients(ShardedUnit& unit) {
  if (!unit.trains()) return;
  if (sending_) sending_->receive();
  unit.send();
  sending_ = &unit;
}

void ShardedUnits::complete_accumulation(int64_t accumulation) {
  for (auto it = units_.rbegin(); it != units_.rend(); ++it)
    if (it->second->accumulations() <= accumulation) send_gradients(*it->second);
}

void ShardedUnits::finish() {
  for (const auto& [unit, sharded] : units_)
    if (sharded->trains() && sharded->accumulations() != plan_.accumulations)
      throw Error(ErrorKind::plugin, to_text(unit),
                  "its gradients were handed over " + std::to_string(sharded->accumulations()) +
                      " times in a step of " + std::to_string(plan_.accumulations) + " micro-batches a rank",
                  "what a unit makes must be used by units after it");
  for (const auto& [unit, sharded] : units_) sharded->finish();
  sending_ = nullptr;
}

}  // namespace ditto
