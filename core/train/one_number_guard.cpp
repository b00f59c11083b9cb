#include "core/train/one_number_guard.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include <ATen/record_function.h>
#include <torch/types.h>

#include "core/config/numerics.h"

namespace ditto {

thread_local int OneNumberGuard::Pause::depth_ = 0;

namespace {

// Overloads and in-place forms (add_) go by the name without. What has a condition is in is_exact, too.
const std::unordered_set<std::string_view> kSingle{
    // memory
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
    "repeat_interleave", "tile", "roll", "pixel_shuffle", "pixel_unshuffle", "flip", "rot90", "pad", "constant_pad_nd",
    "index_select", "index", "gather", "take_along_dim", "masked_select", "masked_select_backward", "masked_fill",
    "masked_scatter", "where", "tril", "triu", "meshgrid", "embedding", "select_backward", "slice_backward",
    "select_scatter", "slice_scatter", "conj", "_conj", "resolve_conj", "resolve_neg", "positive", "lift_fresh_copy",
    "is_same_size", "argwhere", "expand_copy", "copysign", "broadcast_to", "broadcast_tensors", "atleast_1d",
    "atleast_2d", "real",
    // comparisons
    "eq", "ne", "lt", "le", "gt", "ge", "not_equal", "less", "greater", "less_equal", "greater_equal", "maximum",
    "minimum", "fmax", "fmin", "max", "min", "amax", "amin", "aminmax", "argmax", "argmin", "sort", "argsort", "topk",
    "isnan", "isinf", "isfinite", "isposinf", "isneginf", "logical_not", "logical_and", "logical_or", "logical_xor",
    "any", "all", "nonzero", "count_nonzero", "searchsorted", "bucketize", "sign", "sgn", "signbit",
    // one operation
    "mul", "multiply", "outer", "neg", "negative", "abs", "absolute", "sqrt", "reciprocal", "square", "floor", "ceil",
    "round", "trunc", "clamp", "clamp_min", "clamp_max", "clip", "relu", "threshold", "threshold_backward",
    "nan_to_num", "sum_to_size"};

bool is_one(const c10::IValue& value, double number) {
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

bool is_exact(std::string_view name, c10::ArrayRef<const c10::IValue> inputs) {
  const auto input = [&](size_t i) { return i < inputs.size() ? inputs[i] : c10::IValue(); };
  if (name == "add" || name == "sub" || name == "subtract" || name == "rsub")  // self, other, alpha
    return input(2).isNone() || is_one(input(2), 1);
  if (name == "div" || name == "divide" || name == "true_divide")  // self, other, rounding_mode
    return input(2).isNone() || !input(2).isString();
  if (name == "pow") return is_one(input(1), 0) || is_one(input(1), 1) || is_one(input(1), 2);
  if (name == "sum" || name == "mean") return sums_nothing(inputs);
  if (name == "index_put" || name == "_index_put_impl") return input(3).isBool() && !input(3).toBool();  // accumulate
  return kSingle.count(name) == 1;
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

std::mutex mutex;
std::string found;  // the first one

// What this thread is in: units ("block 3 of model 'dit'"), and functions of backward.
thread_local std::vector<std::string> places;

struct PlaceEnds : at::ObserverContext {};

void see(const at::RecordFunction& call) {
  const std::string_view full = call.name();
  constexpr std::string_view kAten = "aten::";
  if (OneNumberGuard::Pause::is_on() || !full.starts_with(kAten)) return;
  auto name = full.substr(kAten.size());
  if (name.ends_with('_')) name.remove_suffix(1);
  const auto inputs = call.inputs();
  if (std::none_of(inputs.begin(), inputs.end(), [](const auto& input) { return has_numbers(input); })) return;
  if (is_exact(name, inputs)) return;
  const std::lock_guard lock(mutex);
  if (!found.empty()) return;
  found = std::string(full) + (places.empty() ? "" : " in " + places.back());
}

// Autograd sums the gradient of what was broadcast after the function itself has ended: its evaluation is the place.
std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& call) {
  constexpr std::string_view kBackward = "autograd::engine::evaluate_function: ";
  const std::string_view name = call.name();
  if (call.scope() == at::RecordScope::USER_SCOPE) {
    places.emplace_back(name);
  } else if (name.starts_with(kBackward)) {
    places.push_back("backward (" + std::string(name.substr(kBackward.size())) + ")");
  } else {
    see(call);
    return nullptr;
  }
  return std::make_unique<PlaceEnds>();
}

void end(const at::RecordFunction&, at::ObserverContext* context) {
  if (context && !places.empty()) places.pop_back();
}

}  // namespace

OneNumberGuard::OneNumberGuard() {
  {
    const std::lock_guard lock(mutex);
    found.clear();
  }
  callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(begin, end)
                                             .needsInputs(true)
                                             .scopes({at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE}));
}

OneNumberGuard::~OneNumberGuard() { at::removeCallback(callback_); }

void OneNumberGuard::check() const {
  const std::lock_guard lock(mutex);
  if (found.empty()) return;
  refuse_numerics(
      "\"one\" cannot hold with a call of " + found + ", whose results depend on threads, sizes or instructions",
      "compute it by an op of ctx.ops, or set run.numerics = \"fast\"");
}

}  // namespace ditto
