#include <ditto/diffusion/error_loss.h>

#include <cmath>

#include <torch/types.h>

#include <ditto/math/elementary.h>
#include <ditto/scheduler.h>

namespace ditto {

using torch::Tensor;

void ErrorLoss::Options::read(OptionReader& option) {
  option("loss", loss,
         "of prediction and target, both times the root of their weight: l2, l1, or huber (smooth, with its bend at 1)")
      .one_of({"l2", "l1", "huber"});
}

Tensor ErrorLoss::scale(const Tensor& weight) {
  return elementary::map(weight, [](double number) { return std::sqrt(number); });
}

std::map<std::string, Tensor> ErrorLoss::losses(const Tensor& prediction, const Tensor& target, const Tensor& weight,
                                                const OpTable* ops) const {
  const auto wide = at::promote_types(prediction.scalar_type(), at::kFloat);
  const auto apart = (spread(scale(weight), prediction).to(wide) * (prediction.to(wide) - target.to(wide))).abs();
  if (options_.loss == "l1") return {{"l1", sample_mean(apart, ops)}};
  return {{"huber", sample_mean(torch::where(apart < 1, 0.5 * (apart * apart), apart - 0.5), ops)}};
}

}  // namespace ditto
