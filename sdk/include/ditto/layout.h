// The list of parameters this rank holds. Strategies edit it instead of walking modules; the optimizer, the norm, the
// sum over copies and the checkpoint read it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <ditto/mesh.h>
#include <ditto/model.h>

namespace ditto {

// How a parameter is cut along one axis: `dim` consists of parts one after another, and every part is cut into `count`
// equal pieces, of which the ones numbered `index` are here.
struct Cut {
  int64_t dim = 0;
  std::vector<int64_t> parts;  // lengths along dim in the uncut tensor
  int64_t index = 0, count = 1;
};

// A block of numbers of the global tensor that lies, as a block, in the local one.
struct Rectangle {
  std::vector<int64_t> global_start, local_start, size;
};

struct LayoutEntry {
  std::string name;                 // full name: "blocks.3.qkv.weight"
  torch::Tensor tensor;             // the leaf here
  std::vector<int64_t> full_shape;  // of the global parameter
  Unit unit;
  LinearModule* linear = nullptr;  // the layer it belongs to, if it is a Linear's; owned by the model
  bool is_bias = false;
  std::map<Axis, Cut> cuts;  // an axis that is not here: this is a copy along it. At most one cut a dim.
  AxisSet summed;            // axes along which a strategy has already summed this gradient in the current step
  AxisSet absent;            // axes along which other ranks hold other parameters (pipeline): neither cut nor copy

  bool is_copy(Axis axis) const { return cuts.count(axis) == 0 && absent.count(axis) == 0; }
  // The pieces of the global tensor that are here; they cover the local tensor. Ascending, none empty.
  DITTO_API std::vector<Rectangle> slices() const;
};

struct DITTO_API Layout {
  std::vector<LayoutEntry> entries;

  // Of a whole model on one device: everything here, nothing cut.
  static Layout of(Model& model);
  const LayoutEntry& at(const std::string& name) const;  // throws Error(shape), naming the nearest
};

// The local shape of `full_shape` after the cuts. Throws Error(config) that names both numbers if a part is not
// divided.
DITTO_API std::vector<int64_t> local_shape(const LayoutEntry& entry);
// The local piece of a full tensor, contiguous.
DITTO_API torch::Tensor cut(const torch::Tensor& full, const Cut& cut);

}  // namespace ditto
