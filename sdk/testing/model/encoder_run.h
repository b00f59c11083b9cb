// Samples for an encoder, and what it makes of them.
#pragma once

#include <string>

#include <ditto/encoder.h>

namespace ditto::testing {

// Three samples, as the host puts them together: texts have two lengths, and are padded with zeros. Floating tensors in
// `dtype`.
Batch encoder_batch(const TensorSpecs& data, at::ScalarType dtype);

// What is kept of samples, and nothing else.
Batch precomputed(const Encoder& encoder, Batch batch, Context& ctx);
// What is made of that; the context's phase is what the batch is for.
Batch encoded(const Encoder& encoder, Batch batch, Context& ctx);

// What is otherwise, beyond `tolerance` of the largest number, where a sample is encoded by itself, in its own length;
// nothing where it is not.
std::string encodes_alone(const Encoder& encoder, const TensorSpecs& data, const Batch& batch, Context& ctx,
                          double tolerance);

}  // namespace ditto::testing
