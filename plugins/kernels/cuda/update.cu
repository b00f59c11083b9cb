// AdamW: I. Loshchilov and F. Hutter, 2019 (arXiv:1711.05101), algorithm 2, with all that follows from it: the weights'
// average and their copy in bf16. The operations are those of plugins/optimizers/adamw/one_pass.cpp, one for one.
#include "pieces.h"

namespace ditto_cuda {

namespace {

constexpr int kUpdateThreads = 256, kNumbers = 4;

struct State {
  float w, m, v, average;
};
DITTO_DEVICE State updated(const AdamW& p, float clip, float keep, State s, float g) {
  g = g * clip;
  s.m = fused(1 - p.beta1, g - s.m, s.m);
  s.v = fused(g * g, 1 - p.beta2, s.v * p.beta2);
  const float spread = fused(root(s.v), p.root, p.eps);
  s.w = fused(-p.rate, quotient(s.m, spread), s.w * keep);
  s.average = fused(p.approach, s.w - s.average, s.average);
  return s;
}

// N numbers of a parameter; one by one where there are fewer, or its memory is not aligned.
template <int N>
DITTO_DEVICE void update(const AdamW& p, float clip, const Parameter& of, Index at) {
  float w[N], g[N], m[N], v[N], average[N];
  load(of.w + at, w);
  load(of.g + at, g);
  load(of.m + at, m);
  load(of.v + at, v);
  fill(0.0f, average);
  if (of.average) load(of.average + at, average);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const State s = updated(p, clip, of.keep, {w[i], m[i], v[i], average[i]}, g[i]);
    w[i] = s.w, m[i] = s.m, v[i] = s.v, average[i] = s.average;
  }
  store(w, of.w + at);
  store(m, of.m + at);
  store(v, of.v + at);
  if (of.average) store(average, of.average + at);
  if (of.copy) store(w, reinterpret_cast<Bf16*>(of.copy) + at);
}

DITTO_DEVICE bool aligned(const void* at, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(at) % bytes == 0;
}

DITTO_KERNEL(kUpdateThreads) adamw_pieces(Parameters all, AdamW p, const Gradients* gradients) {
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

}  // namespace

Status adamw(const Parameters& p, const AdamW& update, const Gradients* gradients, Stream stream) {
  return launch(adamw_pieces, {p.pieces}, kUpdateThreads, 0, stream, p, update, gradients);
}

}  // namespace ditto_cuda
