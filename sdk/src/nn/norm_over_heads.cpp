#include <ditto/nn/norm_over_heads.h>

#include <torch/types.h>

#include <ditto/context.h>
#include <ditto/error.h>

namespace ditto {

using torch::Tensor;

RmsNormOverHeads::RmsNormOverHeads(int64_t heads, int64_t head_width, double eps)
    : weight(parameter("weight", {heads * head_width}, Init::ones())), width_(heads * head_width), eps_(eps) {
  LayerCut cut{{{"weight", 0, {}, head_width}}, "attention heads of width " + std::to_string(head_width)};
  cut.input = LayerCut::Values::cut;
  cut.output = LayerCut::Values::partial;  // the sum of squares, which is what leaves it
  cut.condition = true;                    // inside of attention, where no token is cut away
  declare(Axis::tensor, std::move(cut), "norm over heads");
}
RmsNormOverHeads::~RmsNormOverHeads() = default;

Tensor RmsNormOverHeads::forward(const Tensor& x_BTNK, Context& ctx, const Ops& ops) {
  const auto weight_NK = weight(ctx).view({-1, x_BTNK.size(-1)});
  if (weight_NK.size(0) != x_BTNK.size(-2))
    throw Error(ErrorKind::config, "a norm over all heads of a token",
                "is given " + std::to_string(x_BTNK.size(-2)) + " of " + std::to_string(weight_NK.size(0)) + " heads",
                "choose a strategy that exchanges tokens inside of attention: context_plugin \"ulysses\" or \"ring\"");
  if (!after) return ops.rms_norm(x_BTNK.flatten(-2), weight_NK.flatten(), eps_).to(ctx.compute).view_as(x_BTNK);
  const auto wide = x_BTNK.to(ctx.compute == at::kDouble ? at::kDouble : at::kFloat);
  const auto squares = leave(wide.square().sum(at::IntArrayRef{-2, -1}, /*keepdim=*/true));
  return (wide * torch::rsqrt(squares / static_cast<double>(width_) + eps_) * weight_NK).to(ctx.compute);
}

}  // namespace ditto
