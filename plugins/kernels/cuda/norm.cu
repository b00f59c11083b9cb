// LayerNorm: J. L. Ba, J. R. Kiros and G. E. Hinton, 2016 (arXiv:1607.06450); root mean square: B. Zhang and R.
// Sennrich, 2019 (arXiv:1910.07467). A row is read once.
#include "chunks.h"

namespace ditto_cuda {

namespace {

// The weight of a pack of columns of a row's group.
template <class T, int N>
DITTO_DEVICE void load_weight(const void* weight, Index at, float plus, float (&w)[N]) {
  if (!weight) return fill(1.0f, w);
  load(static_cast<const T*>(weight) + at, w);
#pragma unroll
  for (int i = 0; i < N; ++i) w[i] = plus + w[i];
}

template <class T, class Y, int N>
DITTO_KERNEL(kMostThreads)
norm_rows(Norm p, int lanes) {
  float* const room = reinterpret_cast<float*>(shared_memory());
  const Seat seat(lanes);
  const Index row = static_cast<Index>(block_x()) * seat.rows + seat.row, column = seat.lane * N;
  const bool here = row < p.groups.rows && column < p.width;
  const auto width = static_cast<float>(p.width);
  float x[N];
  fill(0.0f, x);
  if (here) load(static_cast<const T*>(p.x) + row * p.width + column, x);
  float mean = 0;
  if (p.mean) {
    float sum[1] = {0};
#pragma unroll
    for (int i = 0; i < N; ++i) sum[0] = sum[0] + x[i];
    row_sums(sum, seat, room);
    mean = quotient(sum[0], width);
  }
  float rest[2] = {0, 0};  // sums of what is above the mean, and of its squares
  if (here) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      x[i] = x[i] - mean;
      rest[0] = rest[0] + x[i];
      rest[1] = fused(x[i], x[i], rest[1]);
    }
  }
  row_sums(rest, seat, room + kWarp);
  const float lacks = p.mean ? quotient(rest[0], width) : 0.0f;
  const float variance = fused(-lacks, lacks, quotient(rest[1], width));
  const float rstd = quotient(1.0f, root(variance + p.eps));
  if (!here) return;
  const Index at = place_of(p.groups, group_of(p.groups, row), p.width) + column;
  float w[N], b[N];
  load_weight<T>(p.weight, at, p.plus, w);
  fill(0.0f, b);
  if (p.bias) load(static_cast<const T*>(p.bias) + at, b);
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = fused((x[i] - lacks) * rstd, w[i], b[i]);
  store(x, static_cast<Y*>(p.y) + row * p.width + column);
  if (seat.lane != 0) return;
  if (p.mean) p.mean[2 * row] = mean, p.mean[2 * row + 1] = lacks;
  p.rstd[row] = rstd;
}

// Eight numbers of all that it holds take more registers than a block of the most threads leaves it.
constexpr int most_threads(int numbers_of_pack) { return numbers_of_pack == 8 ? 512 : kMostThreads; }

// A block a chunk of rows. The next row is on its way while one is summed.
template <class T, class Y, int N>
DITTO_KERNEL(most_threads(N))
norm_rows_back(NormBack p, int lanes) {
  float* const room = reinterpret_cast<float*>(shared_memory());
  const Seat seat(lanes);
  const Chunk chunk = chunk_at(p.groups, block_x());
  if (chunk.first == chunk.end) return;
  const Index column = seat.lane * N;
  const bool here = column < p.width;
  const auto width = static_cast<float>(p.width);
  float sum[N], dot[N], w[N];
  fill(0.0f, sum);
  fill(0.0f, dot);
  fill(0.0f, w);
  if (here) load_weight<T>(p.weight, place_of(p.groups, chunk.group, p.width) + column, p.plus, w);
  Pack<T, N> next_x = {};
  Pack<Y, N> next_g = {};
  const auto fetch = [&](Index place) {
    if (!here || place >= chunk.end) return;
    const Index at = row_at(p.groups, place) * p.width + column;
    next_x = *reinterpret_cast<const Pack<T, N>*>(static_cast<const T*>(p.x) + at);
    next_g = *reinterpret_cast<const Pack<Y, N>*>(static_cast<const Y*>(p.grad) + at);
  };
  fetch(chunk.first + seat.row);
  for (Index first = chunk.first; first < chunk.end; first += seat.rows) {
    const Index place = first + seat.row;
    const bool row_here = here && place < chunk.end;
    const Index row = place < chunk.end ? row_at(p.groups, place) : 0;
    float n[N], h[N], sums[2] = {0, 0};
    fill(0.0f, n);
    fill(0.0f, h);
    float rstd = 0;
    if (row_here) {
      const float mean = p.mean ? p.mean[2 * row] : 0.0f, lacks = p.mean ? p.mean[2 * row + 1] : 0.0f;
      rstd = p.rstd[row];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float g = wide(next_g.at[i]);
        n[i] = (wide(next_x.at[i]) - mean - lacks) * rstd;
        h[i] = g * w[i];
        sum[i] = sum[i] + g;
        dot[i] = fused(g, n[i], dot[i]);
        sums[0] = sums[0] + h[i];
        sums[1] = fused(h[i], n[i], sums[1]);
      }
    }
    fetch(place + seat.rows);
    if (!p.dx) continue;
    // Two rooms in turn: of the sum before last, all threads have read.
    row_sums(sums, seat, room + ((first - chunk.first) & 1) * 2 * kWarp);
    const float mean_h = p.mean ? quotient(sums[0], width) : 0.0f, mean_hn = quotient(sums[1], width);
    if (!row_here) continue;
#pragma unroll
    for (int i = 0; i < N; ++i) h[i] = fused(-n[i], mean_hn, h[i] - mean_h) * rstd;
    store(h, static_cast<T*>(p.dx) + row * p.width + column);
  }
  const Index to = static_cast<Index>(block_x()) * p.width;
  float* const columns = room + 4 * kWarp;
  if (p.grad_chunks) store_columns(sum, seat, p.width, columns, p.grad_chunks + to);
  if (p.product_chunks) store_columns(dot, seat, p.width, columns + thread_count() * N, p.product_chunks + to);
}

// f of a number as x's, one as y's.
template <class F>
Status by_storages(Storage storage, Storage result, F f) {
  return by_storage(storage, [&](auto x) { return result == storage ? f(x, x) : f(x, float{}); });
}

}  // namespace

bool takes_rows(Index width, Storage storage) {
  const int numbers = storage == Storage::fp32 ? 4 : 8;
  return width > 0 && (width <= kMostThreads || (width % numbers == 0 && width <= most_threads(numbers) * numbers));
}

Status norm(const Norm& p, Stream stream) {
  return by_storages(p.storage, p.result, [&](auto x, auto y) {
    using T = decltype(x);
    using Y = decltype(y);
    const auto by = [&](auto kernel, int numbers) {
      const Walk walk = walk_of(p.width, numbers);
      if (walk.threads > kMostThreads) return kInvalid;
      return launch(kernel, {parts(p.groups.rows, walk.rows())}, walk.threads, sum_room(3), stream, p, walk.lanes);
    };
    constexpr int N = 16 / sizeof(T);
    return under_packs<T>(p.groups) && in_packs<T>(p.width, p.x, p.weight, p.bias, p.y) ? by(norm_rows<T, Y, N>, N)
                                                                                        : by(norm_rows<T, Y, 1>, 1);
  });
}

Status norm_back(const NormBack& p, Stream stream) {
  return by_storages(p.storage, p.result, [&](auto x, auto y) {
    using T = decltype(x);
    using Y = decltype(y);
    const auto by = [&](auto kernel, int numbers) {
      const Walk walk = walk_of(p.width, numbers);
      if (walk.threads > most_threads(numbers)) return kInvalid;
      return launch(kernel, {chunk_rows(p.groups)}, walk.threads, sum_room(4) + column_room(walk, numbers, 2), stream,
                    p, walk.lanes);
    };
    constexpr int N = 16 / sizeof(T);
    return under_packs<T>(p.groups) && in_packs<T>(p.width, p.x, p.weight, p.grad, p.dx)
               ? by(norm_rows_back<T, Y, N>, N)
               : by(norm_rows_back<T, Y, 1>, 1);
  });
}

}  // namespace ditto_cuda
