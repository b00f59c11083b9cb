#include <ditto/optimizer.h>

#include <torch/types.h>

namespace ditto {

void in_parts(const Update& update, const std::vector<OptimizedParameter>& parameters,
              const std::function<void()>& move) {
  torch::NoGradGuard no_grad;
  if (update.clip != 1)
    for (const auto& p : parameters)
      if (p.tensor.grad().defined()) p.tensor.grad().mul_(update.clip);
  move();
  follow(update, parameters);
}

void follow(const Update& update, const std::vector<OptimizedParameter>& parameters) {
  torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> weights;
  for (const auto& p : parameters) weights.push_back(p.tensor.detach());
  if (update.exact)
    for (size_t i = 0; i < update.average.size(); ++i)
      update.average[i].add_((weights[i] - update.average[i]).mul_(1 - update.decay));
  else if (!update.average.empty())
    at::_foreach_lerp_(update.average, weights, 1 - update.decay);
  for (size_t i = 0; i < update.copies.size(); ++i)
    if (update.copies[i].defined()) update.copies[i].copy_(weights[i]);
}

}  // namespace ditto
