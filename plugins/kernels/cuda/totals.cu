// Sums over many numbers, in fp64: means of samples, and the norm of all gradients. A block sums a piece, and a second
// kernel adds the pieces in their order.
#include "pieces.h"

namespace ditto_cuda {

namespace {

constexpr int kWarp = 32, kTotalThreads = 256;

// The sum over a block's threads, for the first: lanes by halves, then warps in order.
DITTO_DEVICE double block_sum(double x) {
  for (int mask = kWarp / 2; mask > 0; mask /= 2) x = x + exchange_xor_wide(x, mask);
  double* const room = reinterpret_cast<double*>(shared_memory());
  if (thread_at() % kWarp == 0) room[thread_at() / kWarp] = x;
  block_barrier();
  if (thread_at() > 0) return x;
  for (int w = 1; w < thread_count() / kWarp; ++w) x = x + room[w];
  return x;
}
constexpr std::size_t kSumRoom = sizeof(double) * kTotalThreads / kWarp;

// A thread's numbers of [0, count): in packs of N where the memory is aligned so, else one by one, in the same order of
// threads, so that where it lies does not show in a sum.
template <int N, class T, class F>
DITTO_DEVICE void each_number(const T* x, Index count, F of) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(x) % (N * sizeof(T)) == 0;
  for (Index at = static_cast<Index>(thread_at()) * N; at < count; at += static_cast<Index>(thread_count()) * N) {
    if (aligned && at + N <= count) {
      float numbers[N];
      load(x + at, numbers);
#pragma unroll
      for (int i = 0; i < N; ++i) of(numbers[i]);
    } else {
      for (Index i = at; i < count && i < at + N; ++i) of(wide(x[i]));
    }
  }
}

template <class T>
DITTO_KERNEL(kTotalThreads)
sample_pieces(const void* x, double* room, Index n, Index pieces) {
  const Index piece = block_x(), first = piece % pieces * kPiece;
  double sum = 0;
  each_number<16 / sizeof(T)>(static_cast<const T*>(x) + piece / pieces * n + first,
                              n - first < kPiece ? n - first : kPiece, [&](float number) { sum = sum + number; });
  sum = block_sum(sum);
  if (thread_at() == 0) room[piece] = sum;
}

template <class T>
DITTO_KERNEL(kTotalThreads)
sample_means(const double* room, void* mean, Index samples, Index n, Index pieces) {
  const Index sample = static_cast<Index>(block_x()) * thread_count() + thread_at();
  if (sample >= samples) return;
  double sum = 0;
  for (Index piece = 0; piece < pieces; ++piece) sum = sum + room[sample * pieces + piece];
  put(static_cast<float>(quotient(sum, static_cast<double>(n))), static_cast<T*>(mean)[sample]);
}

template <class T>
DITTO_KERNEL(kTotalThreads)
spread_means(const void* grad, void* dx, Index numbers, Index n) {
  const Index at = static_cast<Index>(block_x()) * thread_count() + thread_at();
  if (at < numbers)
    put(quotient(wide(static_cast<const T*>(grad)[at / n]), static_cast<float>(n)), static_cast<T*>(dx)[at]);
}

DITTO_KERNEL(kTotalThreads) gradient_pieces(Parameters p, double* room) {
  const PieceOf place(p, block_x());
  double sum = 0;
  if (place.of->g)
    each_number<4>(place.of->g + place.first, place.count, [&](float g) {
      const double wide_g = g;
      sum = sum + wide_g * wide_g;
    });
  sum = block_sum(sum);
  if (thread_at() == 0) room[block_x()] = sum;
}

DITTO_KERNEL(kTotalThreads) add_pieces(const double* room, Index pieces, double scale, double most, Gradients* out) {
  double sum = 0;
  for (Index piece = thread_at(); piece < pieces; piece += thread_count()) sum = sum + room[piece];
  sum = block_sum(sum);
  if (thread_at() > 0) return;
  const double norm = root(sum) * scale;
  out->norm = norm;
  out->clip = static_cast<float>(most > 0 && norm > most ? scale * quotient(most, norm) : scale);
  out->finite = norm - norm == 0;
}

}  // namespace

Index sample_room(Index samples, Index n) { return samples * pieces_of(n); }

Status sample_mean(const void* x, void* mean, double* room, Index samples, Index n, Storage storage, Stream stream) {
  return by_storage(storage, [&](auto number) {
    using T = decltype(number);
    const Status status =
        launch(sample_pieces<T>, {sample_room(samples, n)}, kTotalThreads, kSumRoom, stream, x, room, n, pieces_of(n));
    if (status) return status;
    return launch(sample_means<T>, {(samples + kTotalThreads - 1) / kTotalThreads}, kTotalThreads, 0, stream, room,
                  mean, samples, n, pieces_of(n));
  });
}

Status sample_mean_back(const void* grad, void* dx, Index samples, Index n, Storage storage, Stream stream) {
  return by_storage(storage, [&](auto number) {
    return launch(spread_means<decltype(number)>, {(samples * n + kTotalThreads - 1) / kTotalThreads}, kTotalThreads, 0,
                  stream, grad, dx, samples * n, n);
  });
}

Status gradient_norm(const Parameters& p, double* room, double scale, double most, Gradients* out, Stream stream) {
  const Status status = launch(gradient_pieces, {p.pieces}, kTotalThreads, kSumRoom, stream, p, room);
  if (status) return status;
  return launch(add_pieces, {1}, kTotalThreads, kSumRoom, stream, room, p.pieces, scale, most, out);
}

}  // namespace ditto_cuda
