#include <ditto/optimizer.h>

#include <algorithm>

#include <torch/types.h>

namespace ditto {

namespace {

// average + (weight - average) rate, of pieces that stay in a processor's cache between the three operations, and for
// who is told of them.
void approach(const torch::Tensor& average, const torch::Tensor& weight, double rate,
              const std::function<void(int64_t begin, int64_t end)>& written) {
  constexpr int64_t kPiece = 1 << 18;
  if (!average.is_contiguous() || !weight.is_contiguous()) {
    average.add_((weight - average).mul_(rate));
    return;
  }
  const auto to = average.view({-1}), from = weight.view({-1});
  auto way = torch::empty({std::min(kPiece, to.numel())}, to.options());
  for (int64_t begin = 0; begin < to.numel(); begin += kPiece) {
    const int64_t size = std::min(kPiece, to.numel() - begin);
    auto piece = to.narrow(0, begin, size), step = way.narrow(0, 0, size);
    torch::sub_out(step, from.narrow(0, begin, size), piece);
    piece.add_(step.mul_(rate));
    if (written) written(begin, begin + size);
  }
}

}  // namespace

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
    for (size_t i = 0; i < update.average.size(); ++i) {
      std::function<void(int64_t, int64_t)> written;
      if (update.written) written = [&](int64_t begin, int64_t end) { update.written(i, begin, end); };
      approach(update.average[i], weights[i], 1 - update.decay, written);
    }
  else if (!update.average.empty())
    at::_foreach_lerp_(update.average, weights, 1 - update.decay);
  for (size_t i = 0; i < update.copies.size(); ++i)
    if (update.copies[i].defined()) update.copies[i].copy_(weights[i]);
}

}  // namespace ditto
