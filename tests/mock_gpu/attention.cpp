// Attention by cuDNN and by FlashAttention on the CPU: LibTorch has these operations for GPUs alone. A mock GPU's is
// one launch, as every operation of the CPU that stands for its own (ops.cpp). They refuse what a GPU's refuse, compute
// no pair of a query and a key but those of the samples, and count them.
//
// Legend: B rows, T queries, S keys, N heads, M heads of keys and values, K head width, P samples.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "tests/mock_gpu/counts.h"

namespace mock_gpu {

namespace {

using at::Tensor;
using c10::SymInt;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Sample {
  Tensor q, k, v;  // [T, N, K], [S, M, K], in fp64
  bool causal;
  double scale;

  int64_t each() const { return q.size(1) / k.size(1); }
  Tensor of_all_heads(const Tensor& x) const { return x.repeat_interleave(each(), 1).transpose(0, 1); }
  // [N, T, S]; a causal query's last key is as far from the last as the query is.
  Tensor scores() const {
    auto all = at::matmul(q.transpose(0, 1), of_all_heads(k).transpose(1, 2)) * scale;
    counts().attention_pairs += all.numel();
    if (!causal) return all;
    const auto hidden = at::ones({all.size(1), all.size(2)}, at::kBool).triu(all.size(2) - all.size(1) + 1);
    return all.masked_fill(hidden, -kInfinity);
  }
  // The output [T, N, K] and log-sum-exp [N, T]: 0 and inf of queries that see no key.
  std::pair<Tensor, Tensor> forward() const {
    const auto all = scores();
    const auto lse = at::logsumexp(all, -1);
    const auto known = at::where(lse == -kInfinity, kInfinity, lse);
    return {at::matmul((all - known.unsqueeze(-1)).exp(), of_all_heads(v)).transpose(0, 1), known};
  }
  std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& grad, const Tensor& out, const Tensor& lse) const {
    const auto g = grad.to(at::kDouble).transpose(0, 1), o = out.to(at::kDouble).transpose(0, 1);
    const auto shares = (scores() - lse.to(at::kDouble).unsqueeze(-1)).exp();
    const auto of_scores = shares * (at::matmul(g, of_all_heads(v).transpose(1, 2)) - (g * o).sum(-1, true)) * scale;
    const auto sum = [&](const Tensor& x) { return x.transpose(0, 1).unflatten(1, {k.size(1), each()}).sum(2); };
    return {at::matmul(of_scores, of_all_heads(k)).transpose(0, 1),
            sum(at::matmul(of_scores.transpose(1, 2), q.transpose(0, 1))), sum(at::matmul(shares.transpose(1, 2), g))};
  }
};

void require(const Tensor& q, const Tensor& k, const Tensor& v, int64_t most_width) {
  for (const auto& x : {q, k, v}) {
    TORCH_CHECK(x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16,
                "mock_gpu: attention of fp16 and bf16 alone, not of ", x.scalar_type());
    TORCH_CHECK(x.stride(-1) == 1, "mock_gpu: a head's numbers must follow one another");
  }
  TORCH_CHECK(q.size(-1) % 8 == 0 && q.size(-1) <= most_width, "mock_gpu: heads of width ", q.size(-1));
  TORCH_CHECK(q.size(-2) % k.size(-2) == 0, "mock_gpu: heads of keys must divide those of queries");
}

// All samples of a call: whole rows, or what `starts` says of one sequence.
struct Samples {
  Samples(const Tensor& q, const Tensor& k, const std::optional<Tensor>& starts,
          const std::optional<Tensor>& key_starts, int64_t longest, int64_t longest_keys)
      : packed(starts && starts->defined()) {
    if (!packed) {
      for (int64_t b = 0; b < q.size(0); ++b) list.push_back({b * q.size(1), q.size(1), b * k.size(1), k.size(1)});
      return;
    }
    TORCH_CHECK(starts->scalar_type() == at::kInt && key_starts->scalar_type() == at::kInt && starts->is_contiguous() &&
                    key_starts->is_contiguous() && starts->numel() == key_starts->numel(),
                "mock_gpu: samples begin where two lists of int32 say");
    const auto *at = starts->const_data_ptr<int>(), *keys = key_starts->const_data_ptr<int>();
    for (int64_t i = 0; i + 1 < starts->numel(); ++i)
      list.push_back({at[i], at[i + 1] - at[i], keys[i], keys[i + 1] - keys[i]});
    for (const auto& one : list)
      TORCH_CHECK(one.T >= 0 && one.S >= 0 && one.T <= longest && one.S <= longest_keys &&
                      one.query + one.T <= q.size(0) && one.key + one.S <= k.size(0),
                  "mock_gpu: a sample is longer than is said, or goes beyond its memory");
  }
  struct Place {
    int64_t query, T, key, S;
  };
  static Tensor flat(const Tensor& x) { return x.dim() == 4 ? x.flatten(0, 1) : x; }
  bool packed;
  std::vector<Place> list;
};

Sample sample(const Samples::Place& at, const Tensor& q, const Tensor& k, const Tensor& v, bool causal,
              std::optional<double> scale) {
  const auto part = [](const Tensor& x, int64_t from, int64_t count) {
    return Samples::flat(x).narrow(0, from, count).to(at::kDouble);
  };
  return {part(q, at.query, at.T), part(k, at.key, at.S), part(v, at.key, at.S), causal,
          scale.value_or(1 / std::sqrt(static_cast<double>(q.size(-1))))};
}

// Memory that nobody writes is full of nans.
Tensor unwritten(const Tensor& like) {
  return at::full(like.sizes(), std::numeric_limits<double>::quiet_NaN(), like.options());
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> flash(const Tensor& q, const Tensor& k, const Tensor& v,
                                                         const std::optional<Tensor>& starts,
                                                         const std::optional<Tensor>& key_starts, SymInt longest,
                                                         SymInt longest_keys, double dropout, bool causal, bool,
                                                         std::optional<double> scale, std::optional<SymInt> left,
                                                         std::optional<SymInt> right, const std::optional<Tensor>& used,
                                                         const std::optional<Tensor>& slopes) {
  require(q, k, v, 256);
  TORCH_CHECK(dropout == 0 && !left && !right && !used && !slopes, "mock_gpu: FlashAttention that nobody asks for");
  const Samples samples(q, k, starts, key_starts, longest.expect_int(), longest_keys.expect_int());
  const auto out = unwritten(q), flat_out = Samples::flat(out);
  const auto lse =
      at::full({q.size(-2), flat_out.size(0)}, std::numeric_limits<double>::quiet_NaN(), q.options().dtype(at::kFloat));
  for (const auto& at : samples.list) {
    const auto [of, sums] = sample(at, q, k, v, causal, scale).forward();
    flat_out.narrow(0, at.query, at.T).copy_(of), lse.narrow(1, at.query, at.T).copy_(sums);
  }
  const auto bits = q.options().dtype(at::kUInt64);
  return {out, samples.packed ? lse : lse.view({q.size(2), q.size(0), q.size(1)}).transpose(0, 1).contiguous(),
          at::empty({2}, bits), at::empty({}, bits), at::empty({0}, q.options())};
}

std::tuple<Tensor, Tensor, Tensor> flash_back(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                                              const Tensor& out, const Tensor& lse, const Tensor& starts,
                                              const Tensor& key_starts, SymInt longest, SymInt longest_keys,
                                              double dropout, bool causal, const Tensor&, const Tensor&,
                                              std::optional<double> scale, std::optional<SymInt> left,
                                              std::optional<SymInt> right) {
  require(q, k, v, 256);
  TORCH_CHECK(dropout == 0 && !left && !right, "mock_gpu: FlashAttention that nobody asks for");
  TORCH_CHECK(lse.is_contiguous(), "mock_gpu: log-sum-exp must be contiguous");
  const Samples samples(q, k, starts, key_starts, longest.expect_int(), longest_keys.expect_int());
  const auto flat_lse = samples.packed ? lse : lse.transpose(0, 1).reshape({q.size(2), -1});
  const auto dq = unwritten(q), dk = unwritten(k), dv = unwritten(v);
  for (const auto& at : samples.list) {
    const auto part = [&](const Tensor& x) { return Samples::flat(x).narrow(0, at.query, at.T); };
    const auto keys = [&](const Tensor& x) { return Samples::flat(x).narrow(0, at.key, at.S); };
    const auto [a, b, c] =
        sample(at, q, k, v, causal, scale).backward(part(grad), part(out), flat_lse.narrow(1, at.query, at.T));
    part(dq).copy_(a), keys(dk).copy_(b), keys(dv).copy_(c);
  }
  return {dq, dk, dv};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, SymInt, SymInt, Tensor, Tensor, Tensor> cudnn(
    const Tensor& q_BNTK, const Tensor& k_BMSK, const Tensor& v_BMSK, const std::optional<Tensor>& bias, bool with_lse,
    double dropout, bool causal, bool, std::optional<double> scale) {
  const auto q = q_BNTK.transpose(1, 2), k = k_BMSK.transpose(1, 2), v = v_BMSK.transpose(1, 2);
  require(q, k, v, 128);
  TORCH_CHECK(q.size(1) > 1 && k.size(1) > 1, "mock_gpu: cuDNN's attention of one query or key");
  TORCH_CHECK(!bias && with_lse && dropout == 0, "mock_gpu: cuDNN's attention that nobody asks for");
  const auto all = flash(q, k, v, {}, {}, q.size(1), k.size(1), 0, causal, false, scale, {}, {}, {}, {});
  const auto seed = at::zeros({}, q.options().dtype(at::kLong));
  return {std::get<0>(all).transpose(1, 2),
          std::get<1>(all).unsqueeze(-1),
          Tensor(),
          Tensor(),
          q.size(1),
          k.size(1),
          seed,
          seed.clone(),
          Tensor()};
}

std::tuple<Tensor, Tensor, Tensor> cudnn_back(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                                              const Tensor& out, const Tensor& lse, const Tensor& seed,
                                              const Tensor& offset, const Tensor& bias, const Tensor&, const Tensor&,
                                              SymInt longest, SymInt longest_keys, double dropout, bool causal,
                                              std::optional<double> scale) {
  TORCH_CHECK(!bias.defined(), "mock_gpu: cuDNN's attention that nobody asks for");
  const auto turned = [](const Tensor& x) { return x.transpose(1, 2); };
  const auto [dq, dk, dv] =
      flash_back(turned(grad), turned(q), turned(k), turned(v), turned(out), lse.squeeze(-1).contiguous(), {}, {},
                 longest, longest_keys, dropout, causal, seed, offset, scale, {}, {});
  return {turned(dq), turned(dk), turned(dv)};
}

}  // namespace
}  // namespace mock_gpu

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("_flash_attention_forward", TORCH_FN(mock_gpu::flash));
  library.impl("_flash_attention_backward", TORCH_FN(mock_gpu::flash_back));
  library.impl("_scaled_dot_product_cudnn_attention", TORCH_FN(mock_gpu::cudnn));
  library.impl("_scaled_dot_product_cudnn_attention_backward", TORCH_FN(mock_gpu::cudnn_back));
}
