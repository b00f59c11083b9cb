// Patterns reduced to plain attention over rows, and the pieces a ring needs.
#include <ditto/attention.h>

#include <cmath>

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
Tensor packed(const OpTable& table, const Tensor& q, const Tensor& k, const Tensor& v, const Packing& packing) {
  const auto qs = q.split_with_sizes(packing.lengths, 1), ks = k.split_with_sizes(packing.lengths, 1),
             vs = v.split_with_sizes(packing.lengths, 1);
  Tensors parts;
  for (size_t i = 0; i < qs.size(); ++i) parts.push_back(plain(table, qs[i], ks[i], vs[i], {}));
  return torch::cat(parts, 1);
}

// [B, F * R, N, K] -> [B * F, R, N, K], attend inside a frame.
Tensor spatial(const OpTable& table, const Tensor& q, const Tensor& k, const Tensor& v, int64_t frames) {
  const auto rows = [&](const Tensor& x) { return x.unflatten(1, {frames, -1}).flatten(0, 1); };
  return plain(table, rows(q), rows(k), rows(v), {}).unflatten(0, {-1, frames}).flatten(1, 2);
}

// [B, F * R, N, K] -> [B * R, F, N, K], attend along the frames.
Tensor temporal(const OpTable& table, const Tensor& q, const Tensor& k, const Tensor& v, int64_t frames) {
  const int64_t places = q.size(1) / frames;
  const auto rows = [&](const Tensor& x) { return x.unflatten(1, {frames, places}).transpose(1, 2).flatten(0, 1); };
  return plain(table, rows(q), rows(k), rows(v), {}).unflatten(0, {-1, places}).transpose(1, 2).flatten(1, 2);
}

Tensor run(const OpTable& table, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionShape& shape) {
  switch (shape.pattern) {
    case Pattern::cross: return plain(table, q, k, v, shape.key_mask_BS);
    case Pattern::full: return shape.packing ? packed(table, q, k, v, *shape.packing) : plain(table, q, k, v, {});
    case Pattern::spatial:
    case Pattern::temporal: break;
  }
  if (shape.packing)
    throw Error(ErrorKind::shape, "attention", "spatial and temporal patterns are not defined for packs");
  return shape.pattern == Pattern::spatial ? spatial(table, q, k, v, shape.grid.frames)
                                           : temporal(table, q, k, v, shape.grid.frames);
}

at::ScalarType accumulation(const Tensor& x) {
  return x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
}

Tensor scores(const Tensor& q_BNTK, const Tensor& k_BNSK) {
  return torch::matmul(q_BNTK, k_BNSK.transpose(-2, -1)) * (1 / std::sqrt(static_cast<double>(q_BNTK.size(-1))));
}

Tensor heads_first(const Tensor& x, at::ScalarType dtype) { return x.to(dtype).transpose(1, 2); }

std::pair<Tensor, Tensor> forward(const Tensor& q, const Tensor& k, const Tensor& v) {
  torch::NoGradGuard no_grad;
  const auto dtype = accumulation(q);
  const auto s = scores(heads_first(q, dtype), heads_first(k, dtype));
  const auto lse = torch::logsumexp(s, -1);
  const auto out = torch::matmul((s - lse.unsqueeze(-1)).exp(), heads_first(v, dtype));
  return {out.transpose(1, 2).to(q.scalar_type()), lse};
}

std::array<Tensor, 3> backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                               const Tensor& lse) {
  torch::NoGradGuard no_grad;
  const auto dtype = accumulation(q);
  const auto qh = heads_first(q, dtype), kh = heads_first(k, dtype), vh = heads_first(v, dtype),
             gh = heads_first(grad, dtype);
  const auto p = (scores(qh, kh) - lse.unsqueeze(-1)).exp();
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
