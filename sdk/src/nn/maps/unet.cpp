#include <ditto/nn/unet.h>

namespace ditto {

using torch::Tensor;

namespace {

constexpr int64_t kTwice = 4;  // the kernel of what doubles the sides

const AfterNorm kSilu{.silu = true};

// Of the middle's channels, which are cut between whole groups.
Split in_groups(const Split& split, const ResidualShape& shape) { return split.in_units(shape.out / shape.groups); }

}  // namespace

MapResidual::MapResidual(const ResidualShape& shape)
    : shape_(shape), norm1_(make<GroupNorm>("norm1", shape.groups, shape.in, Split::none(), shape.eps)) {
  const bool is_doubled = shape.sides == ResidualShape::Sides::doubled;
  const ConvShape doubled{shape.in, shape.in, {kTwice}, {2}, {1}};
  if (is_doubled)
    twice_ = make<ConvTransposed2d>("twice", doubled), past_twice_ = make<ConvTransposed2d>("past_twice", doubled);
  conv1_ = make<Conv2d>("conv1", ConvShape{shape.in, shape.out}, in_groups(Split::columns({shape.out}), shape));
  const auto rows = shape.scale_shift ? Split::columns({shape.out, shape.out}) : Split::columns({shape.out});
  cond_ =
      linear("cond", shape.condition, (shape.scale_shift ? 2 : 1) * shape.out, in_groups(rows.of_condition(), shape));
  norm2_ = make<GroupNorm>("norm2", shape.groups, shape.out, Split::along({shape.out}), shape.eps);
  const ConvShape last{shape.out, shape.out};
  const auto split = in_groups(Split::rows(), shape);
  conv2_ = shape.zero ? make<Conv2d>("conv2", last, split, Init::zeros()) : make<Conv2d>("conv2", last, split);
  if (shape.in != shape.out || shape.always_maps) past_ = make<Conv2d>("past", ConvShape{shape.in, shape.out, {1}});
}
MapResidual::~MapResidual() = default;

Tensor MapResidual::resized(const Tensor& x, ConvTransposed2d* twice, Context& ctx) const {
  switch (shape_.sides) {
    case ResidualShape::Sides::halved: return downsampled(x, ctx);
    case ResidualShape::Sides::doubled: return twice->forward(x, ctx);
    case ResidualShape::Sides::same: break;
  }
  return x;
}

Tensor MapResidual::forward(const Tensor& x, const Tensor& cond_BD, Context& ctx, const std::vector<int64_t>& ids) {
  const Tensor h = conv1_->forward(resized(norm1_->forward(x, ctx, kSilu), twice_.get(), ctx), ctx);
  const Tensor rows = cond_(cond_BD, ctx);
  AfterNorm then = kSilu;
  if (shape_.scale_shift) {
    const auto parts = rows.chunk(2, 1);
    then.scale = parts[0].contiguous(), then.shift = parts[1].contiguous();
  }
  const Tensor moved = shape_.scale_shift ? h : add_channels(h, rows, ctx);
  Tensor last = norm2_->forward(moved, ctx, then);
  if (shape_.dropout > 0) last = ctx.dropout(last, shape_.dropout, ids, shape_.name, norm2_->share);
  const Tensor branch = conv2_->forward(last, ctx);
  const Tensor by = resized(x, past_twice_.get(), ctx);
  const Tensor past = past_ ? past_->forward(by, ctx) : by;
  return (shape_.past == 1 ? past : past * shape_.past) + branch;
}

}  // namespace ditto
