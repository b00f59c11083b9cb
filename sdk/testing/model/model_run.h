// A model as the host runs it, on one device.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <torch/types.h>

#include <ditto/model.h>

namespace ditto::testing {

// A context that works in `dtype`, with reference kernels.
Context context(at::ScalarType dtype);

// Moves the network to `dtype` and gives every parameter numbers other than zero, made from its name.
void fill(Units& network, at::ScalarType dtype);

// `samples` samples for the model's inputs, floating inputs in `dtype`. Indices go round; texts have six tokens.
// Another `number` is another batch.
Batch make_batch(const Model& model, int64_t samples, at::ScalarType dtype, int64_t number = 0);

Stream begin(Model& model, const Batch& batch, Context& ctx);
torch::Tensor predict(Model& model, const Batch& batch, Context& ctx);

// The prediction when the tokens are cut in two between `tokens` and `head`, and attention and ctx.all_tokens alone see
// all of them. Throws std::runtime_error if a half asks them for other numbers than the whole did.
torch::Tensor predict_cut(Model& model, const Batch& batch, Context& ctx);

}  // namespace ditto::testing
