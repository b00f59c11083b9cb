// Gradients that whoever computes them adds to a parameter's sum itself, where autograd would by one more pass.
#pragma once

#include <torch/autograd.h>
#include <torch/types.h>

namespace ditto {

// The compute copy of a leaf: forward hands out the copy, backward hands the gradient to the leaf in the leaf's dtype.
struct UseCopy : torch::autograd::Function<UseCopy> {
  static torch::Tensor forward(torch::autograd::AutogradContext* ctx, const torch::Tensor& leaf,
                               const torch::Tensor& copy);
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grad);
};

// Called in a backward: the sum that the gradient of this input, a leaf or its copy, would be added to by autograd, the
// leaf's .grad, and by nothing on the way to it. Undefined: there is no such sum yet; a hook looks at the gradient, or
// waits for it; the backward is one of some gradients alone (torch::autograd::grad), or differentiable; or
// deterministic algorithms are asked for, and an addition within a product may round otherwise than one behind it.
torch::Tensor sum_of_gradients(const torch::Tensor& input);
// Then, where it was added: that autograd is handed an undefined gradient means that there is none.
void was_added(const torch::Tensor& input);

}  // namespace ditto
