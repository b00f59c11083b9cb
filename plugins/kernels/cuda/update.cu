// Updates of all parameters in one pass, with what follows from a weight: its average and its copy in bf16. AdamW:
// I. Loshchilov and F. Hutter, 2019 (arXiv:1711.05101), algorithm 2; Lion: X. Chen et al., 2023 (arXiv:2302.06675).
//
// The operations are those of plugins/optimizers, one for one.
#include "pieces.h"

namespace ditto_cuda {

namespace {

constexpr int kUpdateThreads = 256, kNumbers = 4;

struct State {
  float w, m, v;
};
DITTO_DEVICE State updated(const AdamW& p, State s, float g, float decay) {
  s.m = fused(1 - p.beta1, g - s.m, s.m);
  s.v = fused(g * g, 1 - p.beta2, s.v * p.beta2);
  const float spread = fused(root(s.v), p.root, p.eps);
  s.w = fused(-p.rate, quotient(s.m, spread), s.w * decay);
  return s;
}
DITTO_DEVICE State updated(const Lion& p, State s, float g, float decay) {
  const float direction = s.m * p.beta1 + g * p.rest1;
  const float sign = direction > 0 ? 1.0f : direction < 0 ? -1.0f : 0.0f;
  s.w = s.w * decay - sign * p.lr;
  s.m = s.m * p.beta2 + g * p.rest2;
  return s;
}
DITTO_DEVICE State updated(const Sgd& p, State s, float g, float decay) {
  float direction = decay > 0 ? s.w * decay + g : g;
  if (p.momentum > 0) {
    s.m = s.m * p.momentum + direction;
    direction = p.nesterov ? s.m * p.momentum + direction : s.m;
  }
  s.w = s.w - direction * p.lr;
  return s;
}

template <int N>
DITTO_DEVICE void load_some(const float* from, Index at, float (&x)[N]) {
  fill(0.0f, x);
  if (from) load(from + at, x);
}

// N numbers of a parameter; one by one where there are fewer, or its memory is not aligned.
template <int N, class Rule>
DITTO_DEVICE void update(const Rule& p, float clip, const Parameter& of, Index at) {
  float w[N], g[N], m[N], v[N], average[N];
  load(of.w + at, w);
  load(of.g + at, g);
  load_some(of.m, at, m);
  load_some(of.v, at, v);
  load_some(of.average, at, average);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const State s = updated(p, {w[i], m[i], v[i]}, g[i] * clip, of.decay);
    w[i] = s.w, m[i] = s.m, v[i] = s.v;
    average[i] = fused(p.approach, s.w - average[i], average[i]);
  }
  store(w, of.w + at);
  if (of.m) store(m, of.m + at);
  if (of.v) store(v, of.v + at);
  if (of.average) store(average, of.average + at);
  if (of.copy) store(w, reinterpret_cast<Bf16*>(of.copy) + at);
}

DITTO_DEVICE bool aligned(const void* at, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(at) % bytes == 0;
}

template <class Rule>
DITTO_KERNEL(kUpdateThreads)
update_pieces(Parameters all, Rule p, const Gradients* gradients) {
  if (!gradients->finite) return;
  const PieceOf piece(all, block_x());
  const Parameter of = *piece.of;
  if (!of.g) return;
  const float clip = gradients->clip;
  const bool in_packs = aligned(of.w, 16) && aligned(of.g, 16) && aligned(of.m, 16) && aligned(of.v, 16) &&
                        aligned(of.average, 16) && aligned(of.copy, 8);
  const Index end = piece.first + piece.count;
  for (Index at = piece.first + thread_at() * kNumbers; at < end; at += kUpdateThreads * kNumbers) {
    if (in_packs && at + kNumbers <= end)
      update<kNumbers>(p, clip, of, at);
    else
      for (Index i = at; i < end && i < at + kNumbers; ++i) update<1>(p, clip, of, i);
  }
}

template <class Rule>
Status update_all(const Parameters& p, const Rule& update, const Gradients* gradients, Stream stream) {
  return launch(update_pieces<Rule>, {p.pieces}, kUpdateThreads, 0, stream, p, update, gradients);
}

}  // namespace

Status adamw(const Parameters& p, const AdamW& update, const Gradients* gradients, Stream stream) {
  return update_all(p, update, gradients, stream);
}
Status lion(const Parameters& p, const Lion& update, const Gradients* gradients, Stream stream) {
  return update_all(p, update, gradients, stream);
}
Status sgd(const Parameters& p, const Sgd& update, const Gradients* gradients, Stream stream) {
  return update_all(p, update, gradients, stream);
}

}  // namespace ditto_cuda
