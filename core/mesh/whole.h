// A parameter, or its gradient, put together from what the ranks hold.
#pragma once

#include <memory>

#include <ditto/optimizer.h>
#include <ditto/parallel/layout.h>

namespace ditto {

// `local` is shaped as entry.tensor; the result has entry.full_shape, on every rank. Called by all ranks that share the
// parameter.
torch::Tensor whole(const LayoutEntry& entry, const torch::Tensor& local, const Mesh& mesh);

// Where a tensor of an optimizer's state lies: as its parameter does, in blocks of it, or whole.
LayoutEntry entry_of(const OptimizerState& state, const LayoutEntry& entry, const torch::Tensor& tensor);

// For optimizers, along the layout's entries. Layout and mesh outlive it.
std::unique_ptr<WholeTensors> make_whole_tensors(const Layout& layout, const Mesh& mesh);

}  // namespace ditto
