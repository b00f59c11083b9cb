// Legend: M rows, K numbers that come in, N that come out.
#if defined(__x86_64__)
#include <algorithm>

#include <ATen/Parallel.h>
#include <ditto/math/prepared.h>
#include <ditto/math/threads.h>

#include "attention.h"
#include "linear.h"
#include "rows.h"

namespace ditto_cpu {

namespace {

using ditto::OpCall;
using ditto::OpInputs;
using ditto::Tensors;
using torch::Tensor;

constexpr int64_t kFewest = 8;         // rows: of less the packing of the weight is the work
constexpr int64_t kWords = 16 * 1024;  // of a piece of packing
// Of GELU's gradient, and of x, at once: whole pieces of packing and of the products.
constexpr int64_t kRowsOfThread = 384, kColumnsOfThread = 384;
static_assert(kRowsOfThread % (2 * kPairs) == 0 && kRowsOfThread % kRows == 0 && kColumnsOfThread % kPanel == 0);

int64_t pieces(int64_t count, int64_t each) { return (count + each - 1) / each; }
const uint16_t* numbers(const Tensor& x) {
  return x.defined() ? static_cast<const uint16_t*>(x.const_data_ptr()) : nullptr;
}
uint16_t* place(const Tensor& x) { return static_cast<uint16_t*>(x.data_ptr()); }

struct Factor {
  Factor(int64_t pairs, int64_t columns, int64_t width)
      : memory(torch::empty({packed(pairs, columns, width)}, torch::kInt)) {}
  explicit Factor(Tensor made) : memory(std::move(made)) {}
  uint32_t* words() const { return static_cast<uint32_t*>(memory.data_ptr()); }
  Tensor memory;
};

struct Map {
  explicit Map(const OpInputs& in)
      : x(in.tensor(0).contiguous()),
        weight(in.tensor(1).contiguous()),
        bias(in.tensor(2).defined() ? in.tensor(2).contiguous() : Tensor()),
        K(weight.size(1)),
        N(weight.size(0)),
        M(x.numel() / K) {}
  Tensor x, weight, bias;
  int64_t K, N, M;
};

// Pieces of a product of rows, by number.
struct Pieces {
  explicit Pieces(const RowProduct& of) : of(of), across(pieces(panels(of.N, kPanel), kPanels)) {}
  int64_t count() const { return pieces(of.M, kRows) * across; }
  void operator()(int64_t i) const { multiply(of, i / across * kRows, i % across * kPanels); }
  RowProduct of;
  int64_t across;
};

int score_of(const OpCall& call) {
  const auto& in = call.inputs;
  const Tensor &x = in.tensor(0), &weight = in.tensor(1);
  if (call.dtype != torch::kBFloat16 || score(call) == 0 || weight.dim() != 2 || x.dim() < 2) return 0;
  const int64_t K = weight.size(1), N = weight.size(0);
  const bool even = K > 0 && N > 0 && K % 2 == 0 && N % 2 == 0;
  return even && x.size(-1) == K && x.numel() / K >= kFewest ? 20 : 0;
}

Tensor outputs(const OpInputs& in) {
  auto shape = in.tensor(0).sizes().vec();
  shape.back() = in.tensor(1).size(0);
  return torch::empty(shape, in.tensor(0).options().requires_grad(false));
}

// Into c, and its GELU where there is room for it.
void map(const OpInputs& in, const Tensor& c, const Tensor& gelu) {
  const Map map(in);
  const Factor factor(ditto::prepared(map.weight, "cpu_bf16_pairs", [&] {
    const Factor made(map.K / 2, map.N, kPanel);
    ditto::in_threads(panels(map.N, kPanel), std::max<int64_t>(1, kWords / (map.K * kPanel / 2)),
                      [&](int64_t begin, int64_t end) {
                        for (int64_t i = begin; i < end; ++i)
                          pack_for_outputs(numbers(map.weight), map.N, map.K, i, made.words());
                      });
    return made.memory;
  }));
  const Pieces product({numbers(map.x), factor.words(), numbers(map.bias), place(c),
                        gelu.defined() ? place(gelu) : nullptr, map.M, map.N, map.K / 2});
  ditto::in_threads(product.count(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) product(i);
  });
}

Tensors linear_of(const OpInputs& in) {
  const Tensor y = outputs(in);
  map(in, y, {});
  return {y};
}

// y, and what the activation was given.
Tensors gelu_of(const OpInputs& in) {
  const Tensor h = outputs(in), y = outputs(in);
  map(in, h, y);
  return {y, h};
}

// The gradients of weight and bias are fp32, as they are summed: whoever takes them rounds them or does not. `h`: what
// GELU was given; undefined: there is none.
Tensors gradients(const Tensor& grad, const OpInputs& in, const Tensor& h) {
  const Map map(in);
  const int64_t M = map.M, K = map.K, N = map.N;
  const bool of_x = in.tensor(0).requires_grad(), of_weight = in.tensor(1).requires_grad(),
             of_bias = map.bias.defined() && in.tensor(2).requires_grad();
  const int64_t P = pieces(M, 2), blocks = pieces(P, kPairs), threads = std::max(1, at::get_num_threads());
  const Factor dy_turned(of_weight ? P : 0, N, kRows);
  const Tensor sums = torch::empty({blocks, N}, torch::kFloat);
  Tensors back(3);
  const auto fp32 = sums.options();
  {  // GELU's gradient is there of some rows at a time
    const int64_t few = h.defined() ? std::min(M, kRowsOfThread * threads) : M,
                  packs = of_x ? pieces(N / 2, kPairs) : 0;
    const Tensor dh = h.defined() ? torch::empty({few, N}, grad.options()) : Tensor();
    const Factor weight(of_x ? N / 2 : 0, K, kPanel);
    if (of_x) back[0] = torch::empty(in.tensor(0).sizes(), grad.options());
    for (int64_t first = 0; first < M; first += few) {
      const int64_t here = std::min(few, M - first), first_block = first / (2 * kPairs),
                    blocks_here = pieces(pieces(here, 2), kPairs);
      const GradientRows rows{numbers(grad),
                              numbers(h),
                              h.defined() ? place(dh) : nullptr,
                              first,
                              M,
                              N,
                              sums.data_ptr<float>(),
                              of_weight ? dy_turned.words() : nullptr};
      ditto::in_threads(blocks_here + (first == 0 ? packs : 0), 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          if (i >= blocks_here)
            pack_rows({numbers(map.weight), N, K, K}, i - blocks_here, weight.words());
          else if (h.defined() || of_bias || of_weight)
            gradient_rows(rows, first_block + i);
      });
      if (!of_x) continue;
      const Pieces dx({h.defined() ? numbers(dh) : numbers(grad), weight.words(), nullptr, place(back[0]) + first * K,
                       nullptr, here, K, N / 2});
      ditto::in_threads(dx.count(), 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) dx(i);
      });
    }
  }
  if (of_weight) {  // by some columns of x at a time
    const int64_t few = std::min(K, kColumnsOfThread * threads), down = pieces(N, kRows);
    back[1] = torch::empty({N, K}, fp32);
    const Factor x(P, few, kPanel);
    for (int64_t first = 0; first < K; first += few) {
      const int64_t here = std::min(few, K - first);
      ditto::in_threads(blocks, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) pack_rows({numbers(map.x) + first, M, here, K}, i, x.words());
      });
      const PairProduct dw{dy_turned.words(), x.words(), back[1].data_ptr<float>() + first, N, here, P, K};
      ditto::in_threads(down * pieces(panels(here, kPanel), kPanels), 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) multiply(dw, i % down * kRows, i / down * kPanels);
      });
    }
  }
  if (of_bias) {
    back[2] = torch::zeros({N}, fp32);
    auto* const to = back[2].data_ptr<float>();
    const auto* of_block = sums.const_data_ptr<float>();
    for (int64_t i = 0; i < blocks; ++i, of_block += N)
      for (int64_t n = 0; n < N; ++n) to[n] += of_block[n];
  }
  return back;
}

}  // namespace

ditto::KernelRow linear_bf16() {
  ditto::KernelRow row{
      "linear",
      "cpu_bf16_pairs",
      score_of,
      linear_of,
      [](const Tensors& grads, const OpInputs& in, const Tensors&) { return gradients(grads[0], in, {}); },
      [](const OpInputs& in) -> Tensors { return {outputs(in)}; }};
  row.reads_output = false;
  return row;
}

ditto::KernelRow linear_gelu_tanh_bf16() {
  ditto::KernelRow row{"linear_gelu_tanh",
                       "cpu_bf16_pairs",
                       score_of,
                       gelu_of,
                       [](const Tensors& grads, const OpInputs& in, const Tensors& results) {
                         return gradients(grads[0], in, results[1]);
                       },
                       [](const OpInputs& in) -> Tensors {
                         return {outputs(in), outputs(in)};
                       }};
  row.again = [](const OpInputs&, const Tensors& results) {
    const Tensor& h = results[1];
    const Tensor y = torch::empty_like(h);
    ditto::in_threads(h.numel(), 2 * kWords,
                      [&](int64_t begin, int64_t end) { gelu(numbers(h) + begin, place(y) + begin, end - begin); });
    return y;
  };
  return row;
}

}  // namespace ditto_cpu
#endif
