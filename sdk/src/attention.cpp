// Patterns reduced to plain attention over rows, and the pieces a ring needs.
#include <ditto/attention.h>

#include <cmath>
#include <limits>

#include <torch/torch.h>

#include <ditto/error.h>
#include <ditto/kernels.h>

namespace ditto {

using torch::Tensor;

namespace {

Tensor plain(const OpTable& table, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask_BS) {
  return table.run("attention", {{q, k, v, mask_BS}});
}

// Every sample of a pack by itself. One row of tokens holds them all.
Tensor packed(const OpTable& table, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionShape& shape) {
  const auto of_samples = [&](const Tensor& x) { return x.split_with_sizes(shape.packing->lengths, 1); };
  const auto qs = of_samples(q), ks = of_samples(k), vs = of_samples(v);
  const auto masks = shape.key_mask_BS.defined() ? of_samples(shape.key_mask_BS) : Tensors(qs.size());
  Tensors parts;
  for (size_t i = 0; i < qs.size(); ++i) parts.push_back(plain(table, qs[i], ks[i], vs[i], masks[i]));
  return torch::cat(parts, 1);
}

// [B, F * R, N, K] -> [B * F, R, N, K], attend inside a frame.
Tensor spatial(const OpTable& table, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionShape& shape) {
  const int64_t frames = shape.grid.frames;
  const auto rows = [&](const Tensor& x) { return x.defined() ? x.unflatten(1, {frames, -1}).flatten(0, 1) : x; };
  return plain(table, rows(q), rows(k), rows(v), rows(shape.key_mask_BS)).unflatten(0, {-1, frames}).flatten(1, 2);
}

// [B, F * R, N, K] -> [B * R, F, N, K], attend along the frames.
Tensor temporal(const OpTable& table, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionShape& shape) {
  const int64_t frames = shape.grid.frames, places = q.size(1) / frames;
  const auto rows = [&](const Tensor& x) {
    return x.defined() ? x.unflatten(1, {frames, places}).transpose(1, 2).flatten(0, 1) : x;
  };
  return plain(table, rows(q), rows(k), rows(v), rows(shape.key_mask_BS))
      .unflatten(0, {-1, places})
      .transpose(1, 2)
      .flatten(1, 2);
}

void check_mask(const Tensor& mask_BS, const Tensor& k) {
  if (!mask_BS.defined()) return;
  const std::vector<int64_t> expected{k.size(0), k.size(1)};
  if (mask_BS.scalar_type() != torch::kBool || mask_BS.sizes() != at::IntArrayRef(expected))
    throw Error(ErrorKind::shape, "attention",
                "was given a key mask that is " + std::string(c10::toString(mask_BS.scalar_type())) + " " +
                    c10::str(mask_BS.sizes()) + ", for keys of " + c10::str(at::IntArrayRef(expected)),
                "give a bool for each key that is given; a mask that comes with a stream is a field of role constant");
}

Tensor run(const OpTable& table, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionShape& shape) {
  check_mask(shape.key_mask_BS, k);
  switch (shape.pattern) {
    case Pattern::cross: return plain(table, q, k, v, shape.key_mask_BS);
    case Pattern::full: return shape.packing ? packed(table, q, k, v, shape) : plain(table, q, k, v, shape.key_mask_BS);
    case Pattern::spatial:
    case Pattern::temporal: break;
  }
  if (shape.packing)
    throw Error(ErrorKind::shape, "attention", "spatial and temporal patterns are not defined for packs");
  return shape.pattern == Pattern::spatial ? spatial(table, q, k, v, shape) : temporal(table, q, k, v, shape);
}

at::ScalarType accumulation(const Tensor& x) {
  return x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
}

Tensor scores(const Tensor& q_BNTK, const Tensor& k_BNSK) {
  return torch::matmul(q_BNTK, k_BNSK.transpose(-2, -1)) * (1 / std::sqrt(static_cast<double>(q_BNTK.size(-1))));
}

Tensor heads_first(const Tensor& x, at::ScalarType dtype) { return x.to(dtype).transpose(1, 2); }

// Of [B, N, T, S], what stands at keys that do not count.
Tensor without(const Tensor& x, const Tensor& mask_BS, double value) {
  return mask_BS.defined() ? x.masked_fill(mask_BS.bitwise_not().unsqueeze(1).unsqueeze(1), value) : x;
}

// The keys' shares. Where no key counts, log-sum-exp is -inf, and every share is 0.
Tensor shares(const Tensor& scores, const Tensor& lse, const Tensor& mask_BS) {
  return without((scores - lse.unsqueeze(-1)).exp(), mask_BS, 0);
}

std::pair<Tensor, Tensor> forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask_BS) {
  torch::NoGradGuard no_grad;
  const auto dtype = accumulation(q);
  const auto s =
      without(scores(heads_first(q, dtype), heads_first(k, dtype)), mask_BS, -std::numeric_limits<double>::infinity());
  const auto lse = torch::logsumexp(s, -1);
  const auto out = torch::matmul(shares(s, lse, mask_BS), heads_first(v, dtype));
  return {out.transpose(1, 2).to(q.scalar_type()), lse};
}

std::array<Tensor, 3> backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& mask_BS, const Tensor& out, const Tensor& lse) {
  torch::NoGradGuard no_grad;
  const auto dtype = accumulation(q);
  const auto qh = heads_first(q, dtype), kh = heads_first(k, dtype), vh = heads_first(v, dtype),
             gh = heads_first(grad, dtype);
  const auto p = shares(scores(qh, kh), lse, mask_BS);
  const auto dp = torch::matmul(gh, vh.transpose(-2, -1));
  const auto delta = (gh * heads_first(out, dtype)).sum(-1, true);
  const auto ds = p * (dp - delta) * (1 / std::sqrt(static_cast<double>(q.size(-1))));
  const auto back = [&](const Tensor& x) { return x.transpose(1, 2).to(q.scalar_type()); };
  return {back(torch::matmul(ds, kh)), back(torch::matmul(ds.transpose(-2, -1), qh)),
          back(torch::matmul(p.transpose(-2, -1), gh))};
}

}  // namespace

AttentionOp plain_attention(const OpTable& table) {
  return {[&table](const Tensor& q, const Tensor& k, const Tensor& v, const AttentionShape& shape) {
            return run(table, q, k, v, shape);
          },
          forward, backward};
}

}  // namespace ditto
