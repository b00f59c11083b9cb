#include <ditto/optimizer.h>

#include <algorithm>

#include <torch/types.h>

#include <ditto/math/threads.h>

namespace ditto {

namespace {

// average + (weight - average) rate, three operations of which none is fused (-ffp-contract=off); piece by piece where
// somebody is told of them, who finds them in a processor's cache.
void approach(const torch::Tensor& average, const torch::Tensor& weight, double rate,
              const std::function<void(int64_t begin, int64_t end)>& written) {
  constexpr int64_t kPiece = 1 << 18, kOfThread = 1 << 15;
  const auto plain = [](const torch::Tensor& x) {
    return x.is_cpu() && x.is_contiguous() && x.scalar_type() == torch::kFloat;
  };
  if (!plain(average) || !plain(weight)) {
    average.add_((weight - average).mul_(rate));
    return;
  }
  auto* const to = average.data_ptr<float>();
  const auto* const from = weight.const_data_ptr<float>();
  const auto by = static_cast<float>(rate);
  const int64_t count = average.numel(), piece = written ? kPiece : count;
  for (int64_t first = 0; first < count; first += piece) {
    const int64_t last = std::min(count, first + piece);
    in_threads(last - first, kOfThread, [&](int64_t begin, int64_t end) {
      for (int64_t i = first + begin; i < first + end; ++i) to[i] += (from[i] - to[i]) * by;
    });
    if (written) written(first, last);
  }
}

}  // namespace

void in_parts(const Update& update, const std::vector<OptimizedParameter>& parameters,
              const std::function<void()>& move) {
  torch::NoGradGuard no_grad;
  for (const auto& p : parameters) {
    if (!p.tensor.grad().defined()) continue;
    if (update.clip != 1) p.tensor.grad().mul_(update.clip);
    if (update.late_clip.defined()) p.tensor.grad().mul_(update.late_clip.to(p.tensor.grad().device()));
  }
  move();
  follow(update, parameters);
}

void follow(const Update& update, const std::vector<OptimizedParameter>& parameters) {
  torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> weights;
  for (const auto& p : parameters) weights.push_back(p.tensor.detach());
  if (!update.exact && !update.skip.defined() && !update.average.empty())
    at::_foreach_lerp_(update.average, weights, 1 - update.decay);
  else
    for (size_t i = 0; i < update.average.size(); ++i) {
      std::function<void(int64_t, int64_t)> written;
      if (update.written) written = [&](int64_t begin, int64_t end) { update.written(i, begin, end); };
      unless_skipped(update, {update.average[i]}, [&] {
        if (update.exact)
          approach(update.average[i], weights[i], 1 - update.decay, written);
        else
          update.average[i].lerp_(weights[i], 1 - update.decay);
      });
    }
  for (size_t i = 0; i < update.copies.size(); ++i)
    if (update.copies[i].defined()) update.copies[i].copy_(weights[i]);
}

void unless_skipped(const Update& update, const std::vector<torch::Tensor>& tensors,
                    const std::function<void()>& change) {
  if (!update.skip.defined()) return change();
  torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> kept;
  for (const auto& tensor : tensors) kept.push_back(tensor.detach().clone());
  change();
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto made = tensors[i].detach();
    at::where_out(made, update.skip.to(made.device()), kept[i], made);
  }
}

bool is_skipped(const Update& update) { return update.skip.defined() && update.skip.item<bool>(); }

double clip_of(const Update& update) {
  return update.late_clip.defined() ? update.clip * update.late_clip.item<double>() : update.clip;
}

}  // namespace ditto
