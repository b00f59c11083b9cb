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

OpInputs convolution_of(at::ScalarType dtype, bool transposed, std::vector<int64_t> after = {1, 1}) {
  const auto own = [&](std::vector<int64_t> shape, int64_t which) {
    return drawn(std::move(shape), which).to(dtype).requires_grad_();
  };
  std::map<std::string, Attribute> attributes{{"stride", std::vector<int64_t>{2, 2}}};
  attributes[transposed ? "padding" : "before"] = std::vector<int64_t>{1, 1};
  if (!transposed) attributes["after"] = std::move(after);
  return {{own({2, 8, 9, 7}, 1),
           own(transposed ? std::vector<int64_t>{8, 6, 4, 4} : std::vector<int64_t>{6, 8, 3, 3}, 2), own({6}, 3)},
          std::move(attributes)};
}

struct Answered {
  Tensor y;
  Tensors grads;
};
Answered answered(const OpTable& table, const std::string& op, const OpInputs& in) {
  Tensors leaves;
  for (const auto& x : in.tensors)
    if (x.defined() && x.requires_grad()) leaves.push_back(x);
  const Tensor y = table.run(op, in).at(0);
  const Tensor grad = drawn(y.sizes().vec(), 9).to(y.scalar_type());
  return {y.detach(), torch::autograd::grad({y}, leaves, {grad})};
}

void check_same_bits(const Answered& a, const Answered& b) {
  CHECK(torch::equal(a.y, b.y));
  REQUIRE(a.grads.size() == b.grads.size());
  for (size_t i = 0; i < a.grads.size(); ++i) CHECK(torch::equal(a.grads[i], b.grads[i]));
}

TEST_CASE("convolutions that are learned from are LibTorch's own calls, bit for bit, whichever row makes them") {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16})
    for (const std::string op : {"conv", "conv_transposed"})
      for (const auto& after : std::vector<std::vector<int64_t>>{{1, 1}, {0, 2}}) {
        CAPTURE(op);
        const auto in = convolution_of(dtype, op == "conv_transposed", after);
        const OpTable own(cpu_rows(), {{op, GivenOption{"libtorch", "the test"}}}),
            reference(cpu_rows(), {{op, GivenOption{"reference", "the test"}}});
        check_same_bits(answered(own, op, in), answered(reference, op, in));
      }
  CHECK(variant_of("conv", convolution_of(torch::kFloat, false)) == "libtorch");
  CHECK(variant_of("conv_transposed", convolution_of(torch::kFloat, true)) == "libtorch");
  CHECK(variant_of("conv", convolution_of(torch::kDouble, false)) == "reference");
  const torch::NoGradGuard no_grad;
  CHECK(variant_of("conv", convolution_of(torch::kFloat, false)) == "reference");
}

// What a norm, or a row of repeated places, gives a convolution: whether it is there while its backward is awaited, and
// the gradients.
struct Between {
  bool kept;
  Tensors grads;
};
Between through(const OpTable& table, const std::string& op, const OpInputs& in, const OpInputs& conv) {
  Tensors leaves{conv.tensors[1], conv.tensors[2]};
  for (const auto& x : in.tensors)
    if (x.defined()) leaves.push_back(x);
  Tensor y = table.run(op, in).at(0);
  const c10::weak_intrusive_ptr<c10::StorageImpl> numbers(
      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(y.storage().unsafeGetStorageImpl()));
  auto then = conv;
  then.tensors[0] = std::move(y);
  const Tensor z = table.run("conv", then).at(0);
  then = {};
  const bool kept = !numbers.expired();
  return {kept, torch::autograd::grad({z}, leaves, {drawn(z.sizes().vec(), 9).to(z.scalar_type())})};
}

TEST_CASE("a normed map, or one of repeated places, that a convolution takes is made again in backward, by its bits") {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16})
    for (const Lies lies : {Lies::first, Lies::last}) {
      const auto norm = norm_of({2, 8, 9, 7}, lies, Then::modulated, dtype);
      OpInputs twice{{norm.tensors[0].detach().requires_grad_()},
                     {{"kind", int64_t{0}}, {"sides", std::vector<int64_t>{2, 2}}}};
      const auto conv = convolution_of(dtype, false);
      const OpTable rows(cpu_rows(), {{"conv", GivenOption{"libtorch", "the test"}}}),
          keeping(cpu_rows(), {{"conv", GivenOption{"reference", "the test"}}});
      for (const auto& [op, in] :
           std::vector<std::pair<std::string, OpInputs>>{{"group_norm", norm}, {"resample", twice}}) {
        CAPTURE(op);
        const auto again = through(rows, op, in, conv), kept = through(keeping, op, in, conv);
        CHECK(!again.kept);
        CHECK(kept.kept);
        REQUIRE(again.grads.size() == kept.grads.size());
        for (size_t i = 0; i < kept.grads.size(); ++i) CHECK(torch::equal(again.grads[i], kept.grads[i]));
      }
    }
}

OpInputs repeats_of(Lies lies, std::vector<int64_t> times, at::ScalarType dtype, std::vector<int64_t> shape) {
  Tensor x = drawn(std::move(shape), 1).to(dtype);
  if (lies == Lies::last) x = x.movedim(1, -1).contiguous().movedim(-1, 1);
  return {{x.requires_grad_()}, {{"kind", int64_t{0}}, {"sides", std::move(times)}}};
}

TEST_CASE("repeated places have the reference's bits in fp32, one rounding in bf16, and lie as their map does") {
  const OpTable own(cpu_rows(), {{"resample", GivenOption{"cpu_simd", "the test"}}}), reference{};
  for (const Lies lies : {Lies::first, Lies::last})
    for (const auto& times : std::vector<std::vector<int64_t>>{{2, 2}, {1, 2}, {3, 1}, {2, 5}, {1, 1}}) {
      const auto in = repeats_of(lies, times, torch::kFloat, {2, 19, 5, 37});
      const auto found = answered(own, "resample", in), meant = answered(reference, "resample", in);
      check_same_bits(found, meant);
      CHECK(found.grads[0].strides() == in.tensors[0].strides());
      CHECK((found.y.stride(1) == 1) == (lies == Lies::last));
      const auto half = repeats_of(lies, times, torch::kBFloat16, {2, 19, 5, 37});
      auto wide = half;
      wide.tensors[0] = half.tensors[0].detach().to(torch::kFloat).requires_grad_();
      const Tensor y = own.run("resample", half).at(0), y2 = reference.run("resample", wide).at(0);
      CHECK(torch::equal(y.detach(), y2.detach().to(torch::kBFloat16)));
      const Tensor grad = drawn(y.sizes().vec(), 5).to(torch::kBFloat16);
      CHECK(torch::equal(
          torch::autograd::grad({y}, {half.tensors[0]}, {grad})[0],
          torch::autograd::grad({y2}, {wide.tensors[0]}, {grad.to(torch::kFloat)})[0].to(torch::kBFloat16)));
    }
  CHECK(variant_of("resample", repeats_of(Lies::first, {2, 2}, torch::kFloat, {1, 2, 3, 4})) == "cpu_simd");
  auto mean = repeats_of(Lies::first, {2, 2}, torch::kFloat, {1, 2, 4, 4});
  mean.attributes["kind"] = int64_t{1};
  CHECK(variant_of("resample", mean) == "reference");
}

TEST_CASE("repeated places have the same bits by one thread and by three, and so have their gradients") {
  const int threads = at::get_num_threads();
  const OpTable own(cpu_rows(), {{"resample", GivenOption{"cpu_simd", "the test"}}});
  for (const Lies lies : {Lies::first, Lies::last}) {
    const auto in = repeats_of(lies, {2, 2}, torch::kFloat, {3, 24, 40, 36});
    at::set_num_threads(1);
    const auto one = answered(own, "resample", in);
    at::set_num_threads(3);
    const auto three = answered(own, "resample", in);
    at::set_num_threads(threads);
    check_same_bits(one, three);
  }
}

TEST_CASE("a convolution of bf16 in fp32 is that of fp32, rounded once, and leaves weights' gradients unrounded") {
  KernelRow row;
  for (auto& one : cpu_rows())
    if (one.op == "conv" && one.variant == "in_fp32_libtorch") row = one;
  REQUIRE(row.forward);
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
