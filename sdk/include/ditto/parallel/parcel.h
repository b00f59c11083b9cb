// A stream taken apart on one rank, to be put together again on another.
//
// A model never includes this file: it is for strategies.
#pragma once

#include <functional>
#include <vector>

#include <ditto/stream.h>

namespace ditto {

struct DITTO_API StreamParcel {
  // All but the tensors' numbers: which field is which tensor, token dims, roles, shapes, dtypes, which tensors want a
  // gradient; the grid, the packing, first_token and region_offset; with a text its lengths.
  std::vector<int64_t> header;
  // Each once: several fields may be one tensor (the tokens, and the long skip they were just kept as), and are again
  // where they arrive, so that gradients are added in the same order as without the journey.
  std::vector<torch::Tensor> tensors;

  // Of those of the stream's fields that `takes` accepts. The tensors are the stream's own, with their graphs.
  static StreamParcel of(Stream& stream, const std::function<bool(const Field&)>& takes);
  // Unfilled contiguous tensors of a header's shapes and dtypes.
  static std::vector<torch::Tensor> room(const std::vector<int64_t>& header, torch::Device device);

  // Indices of the tensors that required a gradient where they came from.
  std::vector<size_t> differentiable() const;
  // Puts all of it into the stream; fields that are not in the parcel stay as they are there.
  void unpack(Stream& stream) const;
};

}  // namespace ditto
