// Legend: B samples, T queries, S keys, N heads, M heads of keys and values, K head width.
#include <cmath>

#include "row_calls.h"

namespace ditto_exact {

namespace {

// A token's numbers of a head follow one another; a layer's q, k and v may be parts of one tensor.
Tensor by_heads(const Tensor& x) { return x.size(-1) > 1 && x.stride(-1) != 1 ? x.contiguous() : x; }

struct Heads {
  explicit Heads(const OpInputs& in)
      : q(by_heads(in.tensor(0))),
        k(by_heads(in.tensor(1))),
        v(by_heads(in.tensor(2))),
        seen(in.tensor(3).defined() ? in.tensor(3).contiguous() : Tensor()),
        bias(in.tensor(4).defined() ? in.tensor(4).contiguous() : Tensor()),
        causal(in.flag("causal")),
        scale(in.number("scale", 1 / std::sqrt(static_cast<double>(q.size(-1))))),
        leaf(token_leaf(in)),
        B(q.size(0)),
        T(q.size(1)),
        N(q.size(2)),
        S(k.size(1)),
        M(k.size(2)),
        K(q.size(3)) {}

  Attention head(Index b, Index n, const Tensor& out, const Tensor& m, const Tensor& inverse) const {
    const Index shared = n / (N / M);
    const unsigned char* of_sample = nullptr;
    if (seen.defined())
      of_sample = static_cast<const unsigned char*>(seen.const_data_ptr()) + (seen.size(0) > 1 ? b * S : 0);
    return {at(q, b, n),
            at(k, b, shared),
            at(v, b, shared),
            q.stride(1),
            k.stride(1),
            v.stride(1),
            place(out) + (b * T * N + n) * K,
            N * K,
            place(m) + (b * N + n) * T,
            place(inverse) + (b * N + n) * T,
            of_sample,
            causal,
            T,
            S,
            K,
            static_cast<float>(scale),
            leaf,
            bias_of(b, n)};
  }
  const float* bias_of(Index b, Index n) const {
    if (!bias.defined()) return nullptr;
    const Index sample = bias.size(0) > 1 ? b : 0, head = bias.size(1) > 1 ? n : 0;
    return numbers(bias) + (sample * bias.size(1) + head) * T * S;
  }
  static const float* at(const Tensor& x, Index b, Index n) { return numbers(x) + b * x.stride(0) + n * x.stride(2); }

  Tensor q, k, v, seen, bias;
  bool causal;
  double scale;
  Index leaf, B, T, N, S, M, K;
};

// A bias is what frozen text encoders have: of it, and through it, there is no gradient.
bool adds(const OpCall& call, const Tensor& bias) {
  const Tensor &q = call.inputs.tensor(0), &k = call.inputs.tensor(1);
  const auto one_or = [&](int64_t dim, int64_t size) { return bias.size(dim) == 1 || bias.size(dim) == size; };
  return !call.grad && bias.dim() == 4 && one_or(0, q.size(0)) && one_or(1, q.size(2)) && bias.size(2) == q.size(1) &&
         bias.size(3) == k.size(1);
}

int score(const Kernels& k, const OpCall& call) {
  const auto& in = call.inputs;
  if (!fits_with_leaf(call) || in.tensor(0).dim() != 4) return 0;
  if (in.tensor(4).defined() && !adds(call, in.tensor(4))) return 0;
  if (in.tensor(3).defined() && (in.tensor(3).scalar_type() != torch::kBool || in.tensor(3).dim() != 2)) return 0;
  return in.tensor(1).size(2) > 0 && in.tensor(0).size(2) % in.tensor(1).size(2) == 0 ? k.score : 0;
}

// The output, and of each query the largest score and the reciprocal of the sum.
Tensors shapes(const OpInputs& in) {
  const Tensor& q = in.tensor(0);
  const auto options = q.options().requires_grad(false);
  const auto of_queries = [&] { return torch::empty({q.size(0), q.size(2), q.size(1)}, options); };
  return {torch::empty(q.sizes(), options), of_queries(), of_queries()};
}

Tensors forward(const Kernels& k, const OpInputs& in) {
  const Heads heads(in);
  const auto results = shapes(in);
  share(heads.B * heads.N, [&](Index begin, Index end) {
    for (Index i = begin; i < end; ++i)
      k.attention(heads.head(i / heads.N, i % heads.N, results[0], results[1], results[2]));
  });
  return results;
}

Tensors backward(const Kernels& kernels, const Tensor& grad, const OpInputs& in, const Tensors& results) {
  const Heads heads(in);
  const auto g = grad.contiguous();
  const Tensors back{torch::empty(heads.q.sizes(), torch::kFloat), torch::empty(heads.k.sizes(), torch::kFloat),
                     torch::empty(heads.v.sizes(), torch::kFloat)};
  const Index each = heads.N / heads.M, K = heads.K;
  share(heads.B * heads.M, [&](Index begin, Index end) {
    for (Index i = begin; i < end; ++i) {
      const Index b = i / heads.M, shared = i % heads.M, first = shared * each;
      const Index of_queries = (b * heads.T * heads.N + first) * K, of_keys = (b * heads.S * heads.M + shared) * K;
      kernels.attention_back({heads.head(b, first, results[0], results[1], results[2]), each, heads.q.stride(2), K, K,
                              numbers(g) + of_queries, place(back[0]) + of_queries, place(back[1]) + of_keys,
                              place(back[2]) + of_keys, heads.N * K, heads.M * K, heads.M * K});
    }
  });
  return {back[0], back[1], back[2], {}, {}};
}

}  // namespace

KernelRow attention(const Kernels& k) {
  return {"attention",
          k.variant,
          [&k](const OpCall& call) { return score(k, call); },
          [&k](const OpInputs& in) { return forward(k, in); },
          [&k](const Tensors& grads, const OpInputs& in, const Tensors& results) {
            return backward(k, grads[0], in, results);
          },
          shapes,
          {"token_leaf", "scale", "causal"}};
}

}  // namespace ditto_exact
