// The rows of the kernel set `exact`, called without a table or autograd.
#pragma once

#include <string>
#include <vector>

#include <ATen/Parallel.h>  // for tests that set threads
#include <torch/types.h>

#include <ditto/error.h>
#include <ditto/kernels.h>
#include <ditto/math/random.h>
#include <ditto/testing/open.h>

#include "tests/support/files.h"

namespace ditto::exact {

using torch::Tensor;

inline std::vector<KernelRow> rows_of_set() {
  static const auto set = testing::make<KernelSet>(test::plugin_folder() + "/kernels/libexact.so", {});
  return set->rows();
}
inline std::vector<KernelRow> rows() {  // the exact ones
  auto all = rows_of_set();
  std::erase_if(all, [](const KernelRow& row) { return !row.exact; });
  return all;
}

inline std::vector<std::string> variants_of(const std::string& op) {
  std::vector<std::string> names;
  for (const auto& row : rows())
    if (row.op == op) names.push_back(row.variant);
  return names;
}
// Those that have every op.
inline std::vector<std::string> variants() { return variants_of("silu"); }

inline KernelRow row_of(const std::string& op, const std::string& variant = "exact_plain") {
  for (const auto& row : rows())
    if (row.op == op && row.variant == variant) return row;
  throw Error(ErrorKind::plugin, op, "has no row", "add one");
}

inline Tensor numbers(std::vector<int64_t> shape, int64_t which) {
  const int64_t id[] = {which};
  for (const auto size : shape)
    if (size == 0) return torch::zeros(shape);
  return Random(7).normal(Purpose::noise, id, shape, torch::kFloat).squeeze(0);
}

inline Tensor grad_of(const Tensor& out) { return numbers(out.sizes().vec(), 11); }

// The op's output, and the gradients of its inputs.
struct Answer {
  Tensor out;
  Tensors grads;
};
inline Answer answer(const KernelRow& row, const OpInputs& in, const Tensor& grad = {}) {
  const auto results = row.forward(in);
  return {results.at(0), row.backward({grad.defined() ? grad : grad_of(results[0])}, in, results)};
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (a.sizes() != b.sizes()) return false;
  const Tensor x = a.contiguous(), y = b.contiguous();
  const Tensor differ = x.view(torch::kInt).ne(y.view(torch::kInt)), nothing = x.isnan().logical_and(y.isnan());
  return !differ.logical_and(nothing.logical_not()).any().item<bool>();
}
inline bool same_bits(const Answer& a, const Answer& b) {
  bool same = same_bits(a.out, b.out) && a.grads.size() == b.grads.size();
  for (size_t i = 0; same && i < a.grads.size(); ++i) same = same_bits(a.grads[i], b.grads[i]);
  return same;
}

}  // namespace ditto::exact
