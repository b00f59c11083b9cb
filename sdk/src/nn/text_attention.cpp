#include <ditto/nn/text_attention.h>

#include <utility>

#include <torch/types.h>

#include <ditto/context.h>

namespace ditto {

using torch::Tensor;

namespace {

std::optional<Init> bias_of(const TextAttention::Shape& shape) {
  return shape.bias ? std::optional(Init::zeros()) : kNoBias;
}

}  // namespace

TextAttention::TextAttention(const Shape& s)
    : head_width_(s.head_width),
      qkv_(linear("qkv", s.width, 3 * s.heads * s.head_width, Split::heads({s.heads, s.heads, s.heads}, s.head_width),
                  Init::xavier(s.width, 3 * s.heads * s.head_width), bias_of(s))),
      proj_(linear("proj", s.heads * s.head_width, s.width, Split::rows().in_units(s.head_width),
                   Init::xavier(s.heads * s.head_width, s.width), bias_of(s))) {}
TextAttention::~TextAttention() = default;

Tensor TextAttention::forward(const Tensor& x_BSD, const TokensSeen& seen, Context& ctx) {
  Sequence tokens;
  tokens.grid = {1, 1, x_BSD.size(1)};
  const auto qkv = qkv_(x_BSD, ctx).unflatten(-1, {3, -1, head_width_}).unbind(-3);  // of the heads that are here
  AttentionCall call;
  call.parts.push_back({qkv[0], qkv[1], qkv[2], std::move(tokens), seen.mask_BS});
  call.causal = seen.causal;
  call.scale = seen.scale;
  call.bias = seen.bias;
  return proj_(ctx.attention(call).at(0).flatten(-2), ctx);
}

}  // namespace ditto
