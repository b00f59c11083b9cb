// Shapes of operations that LibTorch itself computes on the meta device only from Python: those that the SDK's layers
// and the models that come with it are made of.
#include <ATen/ExpandUtils.h>
#include <torch/library.h>
#include <torch/types.h>

namespace ditto {

namespace {

using torch::Tensor;

Tensor like(const Tensor& x, at::IntArrayRef sizes) { return torch::empty(sizes, x.options()); }

// The result, and each row's mean and reciprocal deviation.
std::tuple<Tensor, Tensor, Tensor> layer_norm(const Tensor& x, at::IntArrayRef normalized, const std::optional<Tensor>&,
                                              const std::optional<Tensor>&, double) {
  auto of_rows = x.sizes().vec();
  std::fill(of_rows.end() - static_cast<int64_t>(normalized.size()), of_rows.end(), 1);
  return {like(x, x.sizes()), like(x, of_rows), like(x, of_rows)};
}

// The result, and each group's mean and reciprocal deviation.
std::tuple<Tensor, Tensor, Tensor> group_norm(const Tensor& x, const std::optional<Tensor>&,
                                              const std::optional<Tensor>&, int64_t samples, int64_t, int64_t,
                                              int64_t groups, double) {
  return {like(x, x.sizes()), like(x, {samples, groups}), like(x, {samples, groups})};
}

// Of a list with a number for each side, or one for all of them.
int64_t of_side(at::IntArrayRef list, size_t side) { return list.size() == 1 ? list[0] : list.at(side); }

Tensor convolution(const Tensor& x, const Tensor& weight, const std::optional<Tensor>&, at::IntArrayRef stride,
                   at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef more,
                   int64_t groups) {
  auto sizes = x.sizes().vec();
  sizes.at(1) = transposed ? weight.size(1) * groups : weight.size(0);
  for (size_t i = 0; i + 2 < sizes.size(); ++i) {
    const int64_t reach = of_side(dilation, i) * (weight.sizes()[i + 2] - 1) + 1, zeros = 2 * of_side(padding, i),
                  step = of_side(stride, i);
    sizes[i + 2] = transposed ? (sizes[i + 2] - 1) * step + reach - zeros + of_side(more, i)
                              : (sizes[i + 2] + zeros - reach) / step + 1;
  }
  return like(x, sizes);
}

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  const auto sizes = at::infer_size(condition.sizes(), at::infer_size(a.sizes(), b.sizes()));
  return torch::empty(sizes, a.options().dtype(at::result_type(a, b)));
}

Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index) {
  auto sizes = x.sizes().vec();
  if (!sizes.empty()) sizes.at(static_cast<size_t>(dim < 0 ? dim + x.dim() : dim)) = index.numel();
  return like(x, sizes);
}

Tensor alike(const Tensor& x) { return like(x, x.sizes()); }

Tensor& each(const Tensor& x, Tensor& out) {
  out.resize_(x.sizes());
  return out;
}

Tensor& pairs(const Tensor& a, const Tensor& b, Tensor& out) {
  out.resize_(at::infer_size(a.sizes(), b.sizes()));
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, Meta, ops) {
  ops.impl("native_layer_norm", layer_norm);
  ops.impl("native_group_norm", group_norm);
  ops.impl("convolution", convolution);
  ops.impl("where.self", where);
  ops.impl("index_select", index_select);
  ops.impl("relu", alike);
  ops.impl("abs.out", each);
  ops.impl("logical_not.out", each);
  ops.impl("logical_and.out", pairs);
  ops.impl("logical_or.out", pairs);
}

}  // namespace ditto
