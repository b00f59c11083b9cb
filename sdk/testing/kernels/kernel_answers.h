// What a row, or an op's meaning, makes of a call, however the call's tensors lie in memory.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ditto/kernels.h>

namespace ditto::testing {

// Leaves in another dtype and place.
OpInputs moved(const OpInputs& inputs, at::Device device, at::ScalarType dtype);

// How numbers lie. Around them are others, nan or 0, that whoever takes them for contiguous computes with.
enum class Strides {
  own,         // as the case has them
  slice,       // a part, along each dim, of something wider
  transposed,  // the dims in reverse order; of a single one, every other number of a row
  swapped,     // two dims before the last, which stays as it is
};
inline constexpr Strides kOtherStrides[] = {Strides::slice, Strides::transposed, Strides::swapped};
std::string to_text(Strides strides);
torch::Tensor laid(const torch::Tensor& x, Strides strides);
OpInputs laid(const OpInputs& inputs, Strides strides);  // all tensors

using Compute = std::function<Tensors(const OpInputs& inputs)>;
// The gradient of an output, by its number.
using GradOf = std::function<torch::Tensor(size_t output, const torch::Tensor& of)>;
torch::Tensor own_grad(size_t output, const torch::Tensor& of);
torch::Tensor expanded_grad(size_t output, const torch::Tensor& of);  // one row, or number, at all places

struct Answer {
  Tensors outputs;
  Tensors grads;  // undefined where the input has none
};
Answer answer(const Compute& compute, const OpInputs& inputs, const GradOf& grad);  // null: without gradients

bool same_bits(const torch::Tensor& a, const torch::Tensor& b);

// What a row says by KernelRow::exact, tried on itself, in fp32 on the processor: the same bits by one thread and by
// three, however tensors lie, of a sample alone and among three, and of leaves by themselves, which add up to the
// whole. What cannot be cut so, by the op's reference, is left out. Returns what is wrong.
std::string broken_exactness(const KernelRow& row, const std::vector<Op>& added);

}  // namespace ditto::testing
