// The kernel set `cpu` on maps: which calls its rows take, how results lie, and that threads change no bit. What the
// rows compute the contract tests hold against the ops' meaning.
#include <doctest/doctest.h>

#include <ATen/Parallel.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include <ditto/kernels.h>
#include <ditto/math/random.h>
#include <ditto/testing/open.h>

#include "tests/support/files.h"

namespace ditto::map_rows {
namespace {

using torch::Tensor;

std::vector<KernelRow> cpu_rows() {
  static const auto set = testing::make<KernelSet>(test::plugin_folder() + "/kernels/libcpu.so", {});
  return set->rows();
}

Tensor drawn(std::vector<int64_t> shape, int64_t which) {
  const int64_t id[] = {which};
  return Random(3).normal(Purpose::noise, id, std::move(shape), torch::kFloat).squeeze(0);
}

enum class Lies { first, last };
enum class Then { nothing, silu, modulated };

OpInputs norm_of(std::vector<int64_t> shape, Lies lies, Then then, at::ScalarType dtype = torch::kFloat) {
  Tensor x = drawn(shape, 1).to(dtype);
  if (lies == Lies::last) x = x.movedim(1, -1).contiguous().movedim(-1, 1);
  const auto row = [&](std::vector<int64_t> size, int64_t which) { return drawn(std::move(size), which).to(dtype); };
  const auto of_samples = [&](int64_t which) {
    return then == Then::modulated ? row({shape[0], shape[1]}, which) : Tensor();
  };
  OpInputs in{{x, row({shape[1]}, 2), row({shape[1]}, 3), of_samples(4), of_samples(5)},
              {{"groups", int64_t{4}}, {"eps", 1e-5}, {"silu", then != Then::nothing}}};
  for (auto& tensor : in.tensors)
    if (tensor.defined()) tensor.requires_grad_();
  return in;
}

std::string variant_of(const std::string& op, const OpInputs& in) {
  const OpTable table(cpu_rows());
  table.run(op, in);
  return table.chosen().begin()->second;
}

struct Found {
  Tensor y;
  Tensors grads;
};
Found found(const OpInputs& in, const Tensor& grad) {
  const OpTable table(cpu_rows(), {{"group_norm", GivenOption{"cpu_simd", "the test"}}});
  Tensors leaves;
  for (const auto& x : in.tensors)
    if (x.defined()) leaves.push_back(x);
  const Tensor y = table.run("group_norm", in).at(0);
  return {y.detach(), torch::autograd::grad({y}, leaves, {grad})};
}

TEST_CASE("the norm's row takes calls with more than the norm, and channels last to be learned from") {
  const std::vector<int64_t> large{2, 16, 32, 32}, small{2, 8, 5, 5};
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    const auto variant = [&](const auto& shape, Lies lies, Then then) {
      return variant_of("group_norm", norm_of(shape, lies, then, dtype));
    };
    CHECK(variant(small, Lies::first, Then::modulated) == "cpu_simd");
    CHECK(variant(large, Lies::first, Then::silu) == "cpu_simd");
    CHECK(variant(small, Lies::first, Then::silu) == "reference");
    CHECK(variant(large, Lies::first, Then::nothing) == "reference");
    CHECK(variant(large, Lies::last, Then::nothing) == "cpu_simd");
    CHECK(variant(large, Lies::last, Then::silu) == "cpu_simd");
    const torch::NoGradGuard no_grad;
    CHECK(variant(large, Lies::last, Then::nothing) == "reference");
  }
  CHECK(variant_of("group_norm", norm_of(small, Lies::first, Then::modulated, torch::kDouble)) == "reference");
}

TEST_CASE("a norm's result and its gradient lie as its map does, whichever way the gradient comes") {
  for (const Lies lies : {Lies::first, Lies::last}) {
    const auto in = norm_of({2, 8, 6, 7}, lies, Then::modulated);
    const Tensor grad = drawn({2, 8, 6, 7}, 6), other = grad.movedim(1, -1).contiguous().movedim(-1, 1);
    const auto a = found(in, grad), b = found(in, other);
    CHECK(a.y.strides() == in.tensors[0].strides());
    CHECK(a.grads[0].strides() == in.tensors[0].strides());
    for (size_t i = 0; i < a.grads.size(); ++i) CHECK(torch::equal(a.grads[i], b.grads[i]));
  }
}

TEST_CASE("a norm has the same bits by one thread and by three, in one piece of a map or several") {
  const int threads = at::get_num_threads();
  for (const Lies lies : {Lies::first, Lies::last}) {
    const auto in = norm_of({2, 12, 128, 96}, lies, Then::modulated);
    const Tensor grad = drawn({2, 12, 128, 96}, 7);
    at::set_num_threads(1);
    const auto one = found(in, grad);
    at::set_num_threads(3);
    const auto three = found(in, grad);
    at::set_num_threads(threads);
    CHECK(torch::equal(one.y, three.y));
    for (size_t i = 0; i < one.grads.size(); ++i) CHECK(torch::equal(one.grads[i], three.grads[i]));
  }
}

TEST_CASE("a convolution of bf16 in fp32 is that of fp32, rounded once, and leaves weights' gradients unrounded") {
  KernelRow row;
  for (auto& one : cpu_rows())
    if (one.op == "conv") row = one;
  REQUIRE(row.variant == "in_fp32_libtorch");
  const auto bf16 = [](const Tensor& x) { return x.to(torch::kBFloat16).requires_grad_(); };
  const OpInputs in{{bf16(drawn({2, 8, 9, 7}, 1)), bf16(drawn({6, 8, 3, 3}, 2)), bf16(drawn({6}, 3))},
                    {{"stride", std::vector<int64_t>{1, 1}},
                     {"before", std::vector<int64_t>{1, 1}},
                     {"after", std::vector<int64_t>{1, 1}}}};
  const auto wide = [&](size_t i) { return in.tensors[i].detach().to(torch::kFloat).requires_grad_(); };
  const Tensor x = wide(0), weight = wide(1), bias = wide(2), y = torch::conv2d(x, weight, bias, 1, 1);
  CHECK(torch::equal(row.forward(in).at(0), y.detach().to(torch::kBFloat16)));
  const Tensor grad = drawn({2, 6, 9, 7}, 4).to(torch::kBFloat16);
  const auto grads = row.backward({grad}, in, {Tensor()});
  const auto meant = torch::autograd::grad({y}, {x, weight, bias}, {grad.to(torch::kFloat)});
  CHECK(torch::equal(grads.at(0), meant[0].to(torch::kBFloat16)));
  CHECK(torch::equal(grads.at(1), meant[1]));
  CHECK(torch::equal(grads.at(2), meant[2]));
}

}  // namespace
}  // namespace ditto::map_rows
