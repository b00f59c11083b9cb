// Linear maps by cublasLt, with their bias, GELU and the bias' gradient made on the way.
//
// Legend: M rows, K numbers that come in, N that come out.
#include "blas.h"
#include "rows.h"

namespace ditto_cuda {

namespace {

bool can(const OpCall& call) {
  const Tensor &x = call.inputs.tensor(0), &weight = call.inputs.tensor(1);
  return fits(call) && x.dim() >= 2 && weight.dim() == 2 && x.numel() > 0 && weight.size(0) > 0 &&
         x.size(-1) == weight.size(1);
}

// False: cublasLt has no algorithm for it, and nothing is done.
bool multiplied(Blas& blas, const Product& p, const Tensor& like) {
  const auto bytes = blas.room(p);
  if (!bytes) return false;
  const Tensor memory = room({static_cast<Index>(*bytes)}, like, torch::kByte);
  launched(blas.multiply(p, place(memory), stream_of(like)), "of a product by cublasLt");
  return true;
}
void multiply(Blas& blas, const Product& p, const Tensor& like) {
  if (multiplied(blas, p, like)) return;
  throw ditto::Error(ditto::ErrorKind::plugin, "a product on a GPU",
                     "of " + std::to_string(p.M) + " x " + std::to_string(p.K) + " by " + std::to_string(p.K) + " x " +
                         std::to_string(p.N) + " numbers: cublasLt has no algorithm for it",
                     "leave it to LibTorch by kernels.linear = \"reference\" and kernels.linear_gelu_tanh = "
                     "\"reference\"");
}

Tensor outputs(const OpInputs& in) {
  auto sizes = in.tensor(0).sizes().vec();
  sizes.back() = in.tensor(1).size(0);
  return room(sizes, in.tensor(0), in.tensor(0).scalar_type());
}

struct Map {
  explicit Map(const OpInputs& in)
      : x(laid(in.tensor(0))),
        weight(laid(in.tensor(1))),
        bias(laid(in.tensor(2))),
        K(weight.size(1)),
        N(weight.size(0)),
        M(x.numel() / K),
        storage(storage_of(x)) {}
  Product product(const Tensor& y) const {
    Product p{M, N, K, numbers(x), numbers(weight), false, true, place(y), storage, storage};
    if (bias.defined()) p.after = After::bias, p.bias = numbers(bias);
    return p;
  }
  Tensor x, weight, bias;
  Index K, N, M;
  Storage storage;
};

struct Wanted {
  bool x, weight, bias;
};
Wanted wanted_from(const OpInputs& in, size_t x, size_t weight, size_t bias) {
  return {wanted(in, x), wanted(in, weight), wanted(in, bias)};
}

// A place to add the weight's gradient to, in fp32 as it is summed.
bool takes(const Tensor& sum) {
  return sum.defined() && sum.scalar_type() == torch::kFloat && sum.is_contiguous() &&
         reinterpret_cast<std::uintptr_t>(sum.const_data_ptr()) % 16 == 0;
}

// The gradients of weight and bias are fp32, as they are summed: whoever takes them rounds them or does not. That of
// the weight is undefined where it was added to `sum`.
Tensors gradients(Blas& blas, const Tensor& g, const OpInputs& in, const Wanted& wants, const Tensor& sum) {
  const Map map(in);
  Tensors back(3);
  if (wants.x) {
    back[0] = room(map.x.sizes(), map.x, map.x.scalar_type());
    multiply(
        blas,
        {map.M, map.K, map.N, numbers(g), numbers(map.weight), false, false, place(back[0]), map.storage, map.storage},
        g);
  }
  const bool of_bias = wants.bias;
  if (wants.weight) {
    const bool adds = takes(sum);
    const Tensor made = adds ? sum : room({map.N, map.K}, map.x);
    Product p{map.N, map.K, map.M, numbers(g), numbers(map.x), true, false, place(made), map.storage, Storage::fp32};
    p.adds = adds;
    if (!adds) back[1] = made;
    const Tensor sums = of_bias ? room({map.N}, map.x) : Tensor();
    if (of_bias) {
      p.after = After::sums_of_a, p.sums = place(sums);
      if (multiplied(blas, p, g))
        back[2] = sums;
      else
        p.after = After::nothing;
    }
    if (!back[2].defined()) multiply(blas, p, g);
  }
  if (of_bias && !back[2].defined()) back[2] = sum_of_rows(g, map.N, GroupsOf(1, map.M), torch::kFloat).view({map.N});
  return back;
}

// GELU of a map, and its argument.
Tensors map_and_gelu(Blas& blas, const OpInputs& in) {
  const Map map(in);
  const Tensor y = outputs(in), h = torch::empty_like(y);
  auto p = map.product(y);
  p.after = After::gelu, p.argument = place(h);
  if (multiplied(blas, p, map.x)) return {y, h};
  multiply(blas, map.product(h), map.x);
  launched(apply(Function::gelu_tanh, numbers(h), place(y), h.numel(), map.storage, stream_of(h)), "apply");
  return {y, h};
}
Tensor gelu_back(const Tensor& h, const Tensor& g) {
  const Tensor dh = torch::empty_like(h);
  launched(apply_back(Function::gelu_tanh, numbers(h), numbers(g), place(dh), h.numel(), storage_of(h), stream_of(h)),
           "apply_back");
  return dh;
}

// The gradient of GELU's argument h, from that of what GELU's result is mapped to, and its sum over rows, rounded as
// they are. No sum: cublasLt does not make the two in one piece.
std::pair<Tensor, Tensor> back_through_gelu(Blas& blas, const Tensor& g, const Tensor& given, const Tensor& h) {
  const Tensor weight = laid(given), dh = torch::empty_like(h);
  const Index H = weight.size(1), N = weight.size(0);
  const auto storage = storage_of(h);
  const Tensor sums = room({H}, h, h.scalar_type());
  Product p{g.numel() / N, H, N, numbers(g), numbers(weight), false, false, place(dh), storage, storage};
  p.after = After::gelu_back, p.argument = place(h), p.sums = place(sums);
  if (multiplied(blas, p, g)) return {dh, sums};
  p.after = After::nothing;
  multiply(blas, p, g);
  return {gelu_back(h, dh), Tensor()};
}

KernelRow row(const char* op) {
  KernelRow row{op, "cuda_blas"};
  row.score = [](const OpCall& call) { return can(call) ? kScore : 0; };
  return row;
}

auto onto_nothing(const KernelRow& row) {
  return [onto = row.backward_onto](const Tensors& grads, const OpInputs& in, const Tensors& results) {
    return onto(grads, in, results, Tensors(in.tensors.size()));
  };
}

}  // namespace

KernelRow linear(const std::shared_ptr<Blas>& blas) {
  auto made = row("linear");
  made.forward = [blas](const OpInputs& in) -> Tensors {
    const Map map(in);
    const Tensor y = outputs(in);
    multiply(*blas, map.product(y), map.x);
    return {y};
  };
  made.backward_onto = [blas](const Tensors& grads, const OpInputs& in, const Tensors&, const Tensors& sums) {
    return gradients(*blas, laid(grads[0]), in, wanted_from(in, 0, 1, 2), sums.at(1));
  };
  made.backward = onto_nothing(made);
  made.shapes = [](const OpInputs& in) -> Tensors { return {outputs(in)}; };
  made.reads_output = false;
  return made;
}

// It keeps y: GELU made again of its rounded argument would have other bits than the product's own.
KernelRow linear_gelu_tanh(const std::shared_ptr<Blas>& blas) {
  auto made = row("linear_gelu_tanh");
  made.score = [](const OpCall& call) { return can(call) && call.inputs.tensor(2).defined() ? kScore : 0; };
  made.forward = [blas](const OpInputs& in) { return map_and_gelu(*blas, in); };
  made.backward_onto = [blas](const Tensors& grads, const OpInputs& in, const Tensors& results, const Tensors& sums) {
    return gradients(*blas, gelu_back(laid(results[1]), laid(grads[0])), in, wanted_from(in, 0, 1, 2), sums.at(1));
  };
  made.backward = onto_nothing(made);
  made.shapes = [](const OpInputs& in) -> Tensors { return {outputs(in), outputs(in)}; };
  made.reads_output = false;
  return made;
}

// It keeps GELU's argument and result. The two maps are those of the tensors 0 to 2, and of GELU's result with 3 and 4.
KernelRow mlp_gelu_tanh(const std::shared_ptr<Blas>& blas) {
  const auto second = [](const Tensor& x, const OpInputs& in) -> OpInputs { return {{x, in.tensor(3), in.tensor(4)}}; };
  auto made = row("mlp_gelu_tanh");
  made.score = [](const OpCall& call) {
    const Tensor &first = call.inputs.tensor(1), &last = call.inputs.tensor(3);
    const bool follows = last.dim() == 2 && last.size(0) > 0 && last.size(1) == first.size(0);
    return can(call) && call.inputs.tensor(2).defined() && follows ? kScore : 0;
  };
  made.forward = [blas, second](const OpInputs& in) -> Tensors {
    const auto inside = map_and_gelu(*blas, in);
    const auto rest = second(inside[0], in);
    const Map map(rest);
    const Tensor y = outputs(rest);
    multiply(*blas, map.product(y), map.x);
    return {y, inside[1], inside[0]};
  };
  made.backward_onto = [blas, second](const Tensors& grads, const OpInputs& in, const Tensors& results,
                                      const Tensors& sums_of) {
    const Tensor g = laid(grads[0]);
    auto wants = wanted_from(in, 0, 1, 2);
    const auto of_second =
        gradients(*blas, g, second(results[2], in), {false, wanted(in, 3), wanted(in, 4)}, sums_of.at(3));
    Tensors back{{}, {}, {}, of_second[1], of_second[2]};
    if (!wants.x && !wants.weight && !wants.bias) return back;
    const auto [dh, sums] = back_through_gelu(*blas, g, in.tensor(3), laid(results[1]));
    if (sums.defined()) wants.bias = false;
    const auto of_first = gradients(*blas, dh, in, wants, sums_of.at(1));
    back[0] = of_first[0], back[1] = of_first[1], back[2] = sums.defined() ? sums : of_first[2];
    return back;
  };
  made.backward = onto_nothing(made);
  made.shapes = [second](const OpInputs& in) -> Tensors {
    const Tensor a = outputs(in);
    return {outputs(second(a, in)), torch::empty_like(a), a};
  };
  made.reads_output = false;
  return made;
}

}  // namespace ditto_cuda
