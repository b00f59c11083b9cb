// The list of parameters this rank holds. Strategies edit it instead of walking modules; the optimizer, the norm, the
// sum over copies and the checkpoint read it.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

#include <ditto/math/random.h>
#include <ditto/parallel/mesh.h>
#include <ditto/units.h>

namespace ditto {

// How a parameter is cut along one axis: `dim` consists of parts one after another, and every part is cut into `count`
// pieces as equal as multiples of `multiple` allow (a piece may be empty), of which the ones numbered `index` are here.
// Cuts of several axes follow one another in the order of kCutOrder, each of what the ones before have left.
struct Cut {
  int64_t dim = 0;
  std::vector<int64_t> parts;  // lengths along dim in the tensor that is cut
  int64_t index = 0, count = 1;
  int64_t multiple = 1;
};
inline constexpr std::array<Axis, 6> kCutOrder{Axis::pipeline, Axis::tensor,    Axis::expert,
                                               Axis::context,  Axis::replicate, Axis::shard};

// A block of numbers of the global tensor that lies, as a block, in the local one.
struct Rectangle {
  std::vector<int64_t> global_start, local_start, size;
};

struct LayoutEntry {
  std::string name;                 // full name: "blocks.3.qkv.weight"
  torch::Tensor tensor;             // what optimizer, EMA and checkpoint see here: the model's leaf, or a shard of it
  std::vector<int64_t> full_shape;  // of the global parameter
  Unit unit;
  Parameter parameter;        // the model's handle; its leaf is where backward leaves the gradient
  CutLayer* layer = nullptr;  // the layer it belongs to, if that may be cut; owned by the model
  std::string own;            // and its name in there: "weight"
  bool trains = true;         // false: it is frozen, its leaf asks for no gradient and its numbers never change
  std::map<Axis, Cut> cuts;   // an axis that is not here: this is a copy along it
  AxisSet summed;  // axes along which a strategy sums this gradient itself; set by core, from ParallelStrategy::sums
  // Whether a strategy sums it over data ranks: their micro-batches are its own to add up.
  bool is_summed_over_data() const { return std::any_of(summed.begin(), summed.end(), is_data_axis); }
  AxisSet absent;  // axes along which other ranks hold other parameters (pipeline): neither cut nor copy

  // The same parameter with `block` consecutive numbers of the last dim as one: where the scales of blocks lie. Throws
  // Error(config) if a cut goes through a block.
  DITTO_API LayoutEntry in_blocks(int64_t block) const;

  // How its layer declares that it may be cut; null: along this axis it is a copy.
  DITTO_API const ParameterCut* declared(Axis axis) const;
  DITTO_API std::string layer_name() const;  // "blocks.3.qkv"

  bool is_copy(Axis axis) const { return cuts.count(axis) == 0 && absent.count(axis) == 0; }
  // The pieces of the global tensor that are here; they cover the local tensor. Ascending, none empty.
  DITTO_API std::vector<Rectangle> slices() const;
};

struct DITTO_API Layout {
  std::vector<LayoutEntry> entries;

  // Of a whole network on one device: everything here, nothing cut. `prefix` stands before every name.
  static Layout of(Units& units, const std::string& prefix = "");
  const LayoutEntry& at(const std::string& name) const;  // throws Error(shape), naming the nearest
};

// The local shape of `full_shape` after the cuts.
DITTO_API std::vector<int64_t> local_shape(const LayoutEntry& entry);
// The local piece of a tensor, contiguous. Of one whose numbers are freed: one of its shape, freed too.
DITTO_API torch::Tensor cut(const torch::Tensor& full, const Cut& cut);

// Gives every tensor of the layout its memory, and fills what is here of each parameter by its full name, global shape
// and Init: the same numbers on every layout.
DITTO_API void initialise(Layout& layout, const Random& random);
// The same of a whole network.
DITTO_API void initialise(Units& units, const Random& random);

}  // namespace ditto
