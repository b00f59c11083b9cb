#include <ditto/exact/exact_calls.h>

#include <algorithm>
#include <array>
#include <string_view>

#include <torch/types.h>

namespace ditto {

namespace {

// Overloads and in-place forms (add_) go by the name without. What has a condition is in is_single, too.
constexpr auto kSingle = [] {
  auto names = std::to_array<std::string_view>(
      {// memory
       "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "zeros", "zeros_like", "new_zeros",
       "zero", "ones", "ones_like", "new_ones", "full", "full_like", "new_full", "fill", "copy", "clone", "contiguous",
       "to", "_to_copy", "type_as", "detach", "alias", "set", "resize", "resize_as", "lift", "lift_fresh", "data",
       "set_data", "requires_grad", "result_type", "_local_scalar_dense", "item", "is_nonzero", "equal", "pin_memory",
       "_version", "is_pinned", "_pin_memory", "cpu",
       // places
       "view", "_unsafe_view", "view_as", "reshape", "reshape_as", "_reshape_alias", "_reshape_copy", "expand",
       "expand_as", "as_strided", "t", "transpose", "permute", "movedim", "moveaxis", "swapaxes", "numpy_T", "mT",
       "squeeze", "unsqueeze", "flatten", "unflatten", "slice", "narrow", "narrow_copy", "select", "split",
       "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "chunk", "unsafe_chunk", "tensor_split", "unbind",
       "unfold", "diagonal", "cat", "concat", "concatenate", "_cat", "stack", "hstack", "vstack", "repeat",
       "repeat_interleave", "tile", "roll", "pixel_shuffle", "pixel_unshuffle", "flip", "rot90", "pad",
       "constant_pad_nd", "index_select", "index", "gather", "take_along_dim", "masked_select",
       "masked_select_backward", "masked_fill", "masked_scatter", "where", "tril", "triu", "meshgrid", "embedding",
       "select_backward", "slice_backward", "select_scatter", "slice_scatter", "conj", "_conj", "resolve_conj",
       "resolve_neg", "positive", "lift_fresh_copy", "is_same_size", "argwhere", "expand_copy", "copysign",
       "broadcast_to", "broadcast_tensors", "atleast_1d", "atleast_2d", "real",
       // comparisons
       "eq", "ne", "lt", "le", "gt", "ge", "not_equal", "less", "greater", "less_equal", "greater_equal", "maximum",
       "minimum", "fmax", "fmin", "max", "min", "amax", "amin", "aminmax", "argmax", "argmin", "sort", "argsort",
       "topk", "isnan", "isinf", "isfinite", "isposinf", "isneginf", "logical_not", "logical_and", "logical_or",
       "logical_xor", "any", "all", "nonzero", "count_nonzero", "searchsorted", "bucketize", "sign", "sgn", "signbit",
       // one operation
       "mul", "multiply", "outer", "neg", "negative", "abs", "absolute", "sqrt", "reciprocal", "square", "floor",
       "ceil", "round", "trunc", "clamp", "clamp_min", "clamp_max", "clip", "relu", "threshold", "threshold_backward",
       "nan_to_num", "sum_to_size"});
  std::sort(names.begin(), names.end());
  return names;
}();
static_assert(std::adjacent_find(kSingle.begin(), kSingle.end()) == kSingle.end(), "each name once");

bool is_scalar(const c10::IValue& value, double number) {
  return value.isScalar() && value.toScalar().toDouble() == number;
}

// A sum of single numbers is none: over dims of one number each, of a tensor of one number.
bool sums_nothing(c10::ArrayRef<const c10::IValue> inputs) {
  const auto& x = inputs[0].toTensor();
  if (x.numel() == 1) return true;
  if (inputs.size() < 2 || !inputs[1].isIntList() || inputs[1].toIntVector().empty()) return false;
  const auto dims = inputs[1].toIntVector();
  return std::all_of(dims.begin(), dims.end(), [&](int64_t dim) { return x.size(dim) == 1; });
}

bool is_single(std::string_view name, c10::ArrayRef<const c10::IValue> inputs) {
  const auto input = [&](size_t i) { return i < inputs.size() ? inputs[i] : c10::IValue(); };
  if (name == "add" || name == "sub" || name == "subtract" || name == "rsub")  // self, other, alpha
    return input(2).isNone() || is_scalar(input(2), 1);
  if (name == "div" || name == "divide" || name == "true_divide")  // self, other, rounding_mode
    return input(2).isNone() || !input(2).isString();
  if (name == "pow") return is_scalar(input(1), 0) || is_scalar(input(1), 1) || is_scalar(input(1), 2);
  if (name == "sum" || name == "mean") return sums_nothing(inputs);
  if (name == "index_put" || name == "_index_put_impl") return input(3).isBool() && !input(3).toBool();  // accumulate
  // self, dim, index, value: one number for all of them. Of several numbers for one place LibTorch leaves open which
  // stays.
  if (name == "scatter") return input(3).isScalar() && input(4).isNone();
  return std::binary_search(kSingle.begin(), kSingle.end(), name);
}

bool has_numbers(const at::Tensor& x) {
  return x.defined() && !x.is_meta() && (x.is_floating_point() || x.is_complex()) && x.numel() > 0;
}

bool has_numbers(const c10::IValue& value) {
  if (value.isTensor()) return has_numbers(value.toTensor());
  if (!value.isList()) return false;
  const auto list = value.toListRef();
  return std::any_of(list.begin(), list.end(),
                     [](const c10::IValue& one) { return one.isTensor() && has_numbers(one.toTensor()); });
}

}  // namespace

bool is_inexact(const at::RecordFunction& call) {
  constexpr std::string_view kAten = "aten::";
  std::string_view name = call.name();
  if (!name.starts_with(kAten)) return false;
  name.remove_prefix(kAten.size());
  if (name.ends_with('_')) name.remove_suffix(1);
  const auto inputs = call.inputs();
  return std::any_of(inputs.begin(), inputs.end(), [](const auto& input) { return has_numbers(input); }) &&
         !is_single(name, inputs);
}

}  // namespace ditto
