// Legend: B rows, T queries, S keys, N heads, M heads of keys and values, K head width.
#if defined(__x86_64__)
#include <cmath>

#include <ditto/math/threads.h>

#include "attention.h"
#include "rows.h"

namespace ditto_cpu {

namespace {

using ditto::OpCall;
using ditto::OpInputs;
using ditto::Tensors;
using torch::Tensor;

// As the kernel reads rows: whole words, at their addresses. A layer's q, k and v may be parts of one tensor.
Tensor in_words(const Tensor& x) {
  const bool fits = x.stride(3) == 1 && x.stride(0) % 2 == 0 && x.stride(1) % 2 == 0 && x.stride(2) % 2 == 0 &&
                    reinterpret_cast<std::uintptr_t>(x.const_data_ptr()) % 4 == 0;
  return fits ? x : x.contiguous();
}

// A head's rows from `token`.
std::uint16_t* place(const Tensor& x, int64_t b, int64_t token, int64_t n) {
  return static_cast<std::uint16_t*>(x.data_ptr()) + b * x.stride(0) + token * x.stride(1) + n * x.stride(2);
}
Rows16 rows(const Tensor& x, int64_t b, int64_t token, int64_t n) { return {place(x, b, token, n), x.stride(1)}; }
RowsOut16 out_rows(const Tensor& x, int64_t b, int64_t token, int64_t n) {
  return {place(x, b, token, n), x.stride(1)};
}

// What attends by itself: a row, or a sample of a pack.
struct Piece {
  int64_t b, query, T, key, S;  // its first query and key, and how many of them
};

struct Heads {
  explicit Heads(const OpInputs& in)
      : q(in_words(in.tensor(0))),
        k(in_words(in.tensor(1))),
        v(in_words(in.tensor(2))),
        seen(in.tensor(3).defined() ? in.tensor(3).expand({q.size(0), k.size(1)}).contiguous() : Tensor()),
        causal(in.flag("causal")),
        scale(static_cast<float>(in.number("scale", 1 / std::sqrt(static_cast<double>(q.size(3)))))),
        N(q.size(2)),
        M(k.size(2)),
        K(q.size(3)) {
    const std::vector<int64_t> whole{q.size(1)}, all_keys{k.size(1)};
    const auto& lengths = in.has("lengths") ? in.list("lengths") : whole;
    const auto& keys = in.has("key_lengths") ? in.list("key_lengths") : in.has("lengths") ? lengths : all_keys;
    for (int64_t b = 0; b < q.size(0); ++b)
      for (size_t i = 0, query = 0, key = 0; i < lengths.size(); ++i) {
        pieces.push_back({b, static_cast<int64_t>(query), lengths[i], static_cast<int64_t>(key), keys[i]});
        query += static_cast<size_t>(lengths[i]), key += static_cast<size_t>(keys[i]);
      }
  }

  AttentionHead head(const Piece& p, int64_t n) const {
    const auto* of_sample =
        seen.defined() ? static_cast<const unsigned char*>(seen.const_data_ptr()) + p.b * k.size(1) + p.key : nullptr;
    const int64_t m = n / (N / M);
    return {rows(q, p.b, p.query, n),
            rows(k, p.b, p.key, m),
            rows(v, p.b, p.key, m),
            p.T,
            p.S,
            K,
            scale,
            of_sample,
            causal};
  }
  // Calls task(piece, head) for each of `heads` of every piece.
  template <class F>
  void each(int64_t heads, F task) const {
    ditto::in_threads(static_cast<int64_t>(pieces.size()) * heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) task(pieces[static_cast<size_t>(i / heads)], i % heads);
    });
  }

  Tensor q, k, v, seen;
  bool causal;
  float scale;
  int64_t N, M, K;
  std::vector<Piece> pieces;
};

float* statistics(const Tensor& lse_BNT, const Piece& p, int64_t n) {
  return lse_BNT.data_ptr<float>() + (p.b * lse_BNT.size(1) + n) * lse_BNT.size(2) + p.query;
}

int score_of(const OpCall& call) {
  const auto& in = call.inputs;
  if (call.dtype != torch::kBFloat16 || score(call) == 0 || in.tensor(4).defined() || in.tensor(0).dim() != 4) return 0;
  const Tensor &q = in.tensor(0), &k = in.tensor(1), &mask = in.tensor(3);
  if (mask.defined() && (mask.scalar_type() != torch::kBool || mask.dim() != 2)) return 0;
  const bool words = q.size(3) > 0 && q.size(3) % 2 == 0;
  return words && k.size(1) > 0 && k.size(2) > 0 && q.size(2) % k.size(2) == 0 ? 10 : 0;
}

// The output, and each query's log-sum-exp.
Tensors shapes(const OpInputs& in) {
  const Tensor& q = in.tensor(0);
  const auto options = q.options().requires_grad(false);
  return {torch::empty(q.sizes(), options),
          torch::empty({q.size(0), q.size(2), q.size(1)}, options.dtype(torch::kFloat))};
}

Tensors forward(const OpInputs& in) {
  const Heads heads(in);
  const auto results = shapes(in);
  heads.each(heads.N, [&](const Piece& p, int64_t n) {
    attention(heads.head(p, n), out_rows(results[0], p.b, p.query, n), statistics(results[1], p, n));
  });
  return results;
}

Tensors backward(const Tensors& grads, const OpInputs& in, const Tensors& results) {
  const Heads heads(in);
  const Tensor grad = in_words(grads[0]), &out = results[0];
  const auto options = heads.q.options().requires_grad(false);
  const Tensors back{torch::empty(heads.q.sizes(), options), torch::empty(heads.k.sizes(), options),
                     torch::empty(heads.v.sizes(), options)};
  const int64_t each = heads.N / heads.M;
  heads.each(heads.M, [&](const Piece& p, int64_t m) {
    std::vector<float> sums(static_cast<size_t>(attention_sums(p.S, heads.K)));
    for (int64_t n = m * each; n < (m + 1) * each; ++n)
      attention_back({heads.head(p, n), rows(out, p.b, p.query, n), rows(grad, p.b, p.query, n),
                      statistics(results[1], p, n), out_rows(back[0], p.b, p.query, n),
                      out_rows(back[1], p.b, p.key, m), out_rows(back[2], p.b, p.key, m), sums.data(), n == m * each,
                      n + 1 == (m + 1) * each});
  });
  return {back[0], back[1], back[2], {}, {}};
}

}  // namespace

ditto::KernelRow attention() {
  return {"attention",
          "cpu_bf16_pairs",
          score_of,
          forward,
          backward,
          shapes,
          {"scale", "causal", "lengths", "key_lengths"}};
}

}  // namespace ditto_cpu
#endif
