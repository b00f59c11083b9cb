#include "ops/added_gradients.h"

#include <ATen/Context.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>

namespace ditto {

using torch::Tensor;
using torch::autograd::AccumulateGrad;
using torch::autograd::CppNode;
using torch::autograd::Node;

Tensor UseCopy::forward(torch::autograd::AutogradContext* ctx, const Tensor& leaf, const Tensor& copy) {
  ctx->saved_data["dtype"] = leaf.scalar_type();
  return copy.view_as(copy);
}

// Undefined only after was_added: else autograd makes zeros of it.
torch::autograd::variable_list UseCopy::backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grad) {
  if (!grad[0].defined()) return {Tensor(), Tensor()};
  return {grad[0].to(ctx->saved_data["dtype"].toScalarType()), Tensor()};
}

namespace {

CppNode<UseCopy>* use_of(const Tensor& input) { return dynamic_cast<CppNode<UseCopy>*>(input.grad_fn().get()); }

bool is_watched(Node& node) {
  return !node.pre_hooks().empty() || !node.post_hooks().empty() || !node.tensor_pre_hooks().empty() ||
         !node.retains_grad_hooks().empty();
}

// Not one of the gradients that were asked for: all that there are.
bool is_whole_backward() {
  const auto* asked = torch::autograd::get_current_graph_task_exec_info();
  return torch::autograd::get_current_graph_task_id() != -1 && (!asked || asked->empty());
}

}  // namespace

Tensor sum_of_gradients(const Tensor& input) {
  if (!input.defined() || !input.requires_grad() || torch::GradMode::is_enabled() ||
      at::globalContext().deterministicAlgorithms() || !is_whole_backward())
    return {};
  auto* const use = use_of(input);
  if (!input.is_leaf() && (!use || is_watched(*use))) return {};
  const auto end = use ? use->next_edge(0).function : torch::autograd::impl::try_get_grad_accumulator(input);
  auto* const adds = dynamic_cast<AccumulateGrad*>(end.get());
  if (!adds || is_watched(*adds) || adds->tensor_post_acc_grad_hooks()) return {};
  const Tensor& sum = adds->variable.grad();
  const bool can_take = sum.defined() && sum.layout() == torch::kStrided && !sum.requires_grad() &&
                        sum.sizes() == input.sizes() && sum.device() == input.device();
  return can_take ? sum : Tensor();
}

void was_added(const Tensor& input) {
  if (auto* const use = use_of(input)) use->ctx_.set_materialize_grads(false);
}

}  // namespace ditto
