// Parameters cut over the shard axis, unit by unit: what zero1, zero2 and fsdp are made of (ZeRO: S. Rajbhandari et
// al., 2019, arXiv:1910.02054; cut parameter by parameter along dim 0, as PyTorch's FSDP2 does).
//
// Legend: P numbers of a unit's parameters, n ranks along the shard axis.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include <ditto/parallel/ordered_sum.h>
#include <ditto/parallel/strategy.h>

namespace ditto {

// One unit's parameters. This rank's rows of each are a leaf of their own in the layout, for the optimizer; the model's
// leaf loses its numbers and is where backward leaves the gradient. Layers compute with whole values, which the ranks
// along the shard axis gather. Calls that talk are made by these ranks alike (send and receive: by all data ranks), in
// the same order. A parameter without dims is left as it is. Throws Error(distributed) as Group does.
class DITTO_API ShardedUnit {
 public:
  // What stays between uses, in the dtype layers multiply in: all P whole values, or P / n if that is not the leaves'
  // own dtype.
  enum class Keep { whole, shard };
  ShardedUnit(Layout& layout, std::vector<size_t> entries, const ParallelStrategy::Needs& needs, Keep keep);
  ~ShardedUnit();
  ShardedUnit(const ShardedUnit&) = delete;
  ShardedUnit& operator=(const ShardedUnit&) = delete;

  // Whole values. The result of begin_gather, which does not wait, takes P numbers more until gather.
  void begin_gather();                                                // does nothing if they are there or on their way
  static void begin_gathers(const std::vector<ShardedUnit*>& units);  // the same of several units of a layout, together
  void gather();                                                      // returns when they are there
  void release();  // frees them; graphs stay valid and see them again after the next gather
  void refresh();  // the layout's leaves have new numbers: old whole values are gone
  bool is_part(const torch::Tensor& tensor) const;  // of the whole values' memory
  Tensors held() const { return {values_, shard_}; }

  // Gradients, in accumulations of a step; the sums are in the order of micro-batches, over the data axes.
  void begin_step(const StepPlan& plan);
  void send();     // takes the next accumulation's gradients out of the model's leaves, to their owners; does not wait
  void receive();  // the last accumulation that was sent
  void finish();   // the step's sums become gradients of the layout's leaves
  int64_t accumulations() const { return accumulations_; }  // sent in this step
  bool trains() const { return !sums_.empty(); }
  // The axes its gradient is summed over here; none of a parameter that is not this unit's.
  AxisSet sums(const LayoutEntry& entry) const;

 private:
  struct Part {
    size_t entry;                 // in the layout
    std::vector<int64_t> bounds;  // member i has the numbers [bounds[i], bounds[i + 1]) of the whole, flattened
    int64_t place;                // of the whole in values_
    torch::Tensor values;         // the same, in the leaf's shape
    int64_t length(int member) const { return bounds[member + 1] - bounds[member]; }
  };
  // Parts whose gradients are summed over the same axes.
  struct Sum {
    AxisSet axes;
    std::vector<Part> parts;
    const Group* copies;          // ranks with the same rows: they divide the sum of these among themselves
    std::vector<int64_t> pieces;  // numbers of each member of the shard axis
    OrderedSum sum;
    torch::Tensor sent;
  };
  LayoutEntry& entry(const Part& part) const { return layout_.entries[part.entry]; }
  Part cut(size_t index);
  void add_to_sums(const Part& part, std::map<AxisSet, std::vector<Part>>& by_axes) const;
  std::unique_ptr<Sum> make_sum(const AxisSet& axes, std::vector<Part> parts) const;
  torch::Tensor flatten(const Sum& sum) const;
  int active_members(const AxisSet& axes) const;
  torch::Tensor pack() const;
  void unpack(const torch::Tensor& gathered) const;

  Layout& layout_;
  const Mesh& mesh_;
  const Group& group_;
  const Keep keep_;
  const SumOrder sum_order_;
  std::vector<Part> parts_;
  int64_t longest_ = 0;   // numbers of the longest shard
  torch::Tensor values_;  // flat, whole; parameters begin at multiples of kAlign numbers
  torch::Tensor shard_;   // Keep::shard: this rank's rows in the compute dtype, padded to the longest
  std::function<torch::Tensor()> arrival_;
  bool present_ = false;
  std::vector<std::unique_ptr<Sum>> sums_;
  StepPlan plan_;
  int64_t accumulations_ = 0;
};

// A model's units, as far as they have parameters here.
class DITTO_API ShardedUnits {
 public:
  // Cuts all parameters of the layout, which outlives this.
  ShardedUnits(Layout& layout, const ParallelStrategy::Needs& needs, ShardedUnit::Keep keep);
  ~ShardedUnits();

  ShardedUnit* find(const Unit& unit) const;  // null: has no parameters here
  // What runs after a unit, or before it, up to and with the nearest block or head. Nearest first.
  std::vector<ShardedUnit*> after(const Unit& unit) const;
  std::vector<ShardedUnit*> before(const Unit& unit) const;
  std::vector<ShardedUnit*> first() const;  // what runs first, likewise

  // The layout's leaves have new numbers. Keep::whole: returns when all whole values are there.
  void parameters_changed();

  Tensors held() const;  // ParallelStrategy::held

  // ParallelStrategy::sums
  AxisSet sums(const LayoutEntry& entry, const StepPlan& plan) const;
  // Gradients, in this order. Of one unit at a time they are on their way: send_gradients first receives the last ones.
  void begin_step(const StepPlan& plan);
  void send_gradients(ShardedUnit& unit);
  void complete_accumulation(
      int64_t accumulation);  // sends for the units that have not sent so many accumulations, the last unit first
  // The step's sums become the layout's gradients. Throws Error(plugin) if a unit has sent more accumulations than the
  // step has: backward came to it twice.
  void finish();

 private:
  const ShardedUnit::Keep keep_;
  std::map<Unit, std::unique_ptr<ShardedUnit>> units_;  // in the order they run
  ShardedUnit* sending_ = nullptr;
  StepPlan plan_;
};

}  // namespace ditto
