// Rows under a row of their group: gated residuals, added rows, rows of a table.
#include "chunks.h"

namespace ditto_cuda {

namespace {

template <class T, int N>
DITTO_KERNEL(kSliceThreads)
gate_rows(Gate p, int lanes) {
  const Seat seat(lanes);
  const Index row = static_cast<Index>(block_x()) * seat.rows + seat.row;
  const Index column = (static_cast<Index>(block_y()) * lanes + seat.lane) * N;
  if (row >= p.groups.rows || column >= p.width) return;
  const Index at = row * p.width + column;
  float out[N], y[N], x[N];
  load(static_cast<const T*>(p.gate) + place_of(p.groups, group_of(p.groups, row), p.width) + column, out);
  if (p.y) load(static_cast<const T*>(p.y) + at, y);
  if (p.x) load(static_cast<const T*>(p.x) + at, x);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (p.x)
      out[i] = p.y ? fused(out[i], y[i], x[i]) : x[i] + out[i];
    else if (p.y)
      out[i] = out[i] * y[i];
  }
  store(out, static_cast<T*>(p.out) + at);
}

// A block a chunk of rows, in a slice of columns.
template <class T, int N>
DITTO_KERNEL(kSliceThreads)
gate_rows_back(GateBack p, int lanes) {
  const Seat seat(lanes);
  const Chunk chunk = chunk_at(p.groups, block_x());
  if (chunk.first == chunk.end) return;
  const Index column = (static_cast<Index>(block_y()) * lanes + seat.lane) * N;
  const bool here = column < p.width;
  float gate[N], sum[N];
  fill(0.0f, gate);
  fill(0.0f, sum);
  if (here && p.dy) load(static_cast<const T*>(p.gate) + place_of(p.groups, chunk.group, p.width) + column, gate);
  for (Index place = chunk.first + seat.row; here && place < chunk.end; place += seat.rows) {
    const Index at = row_at(p.groups, place) * p.width + column;
    float g[N], y[N], dy[N];
    load(static_cast<const T*>(p.grad) + at, g);
    fill(1.0f, y);
    if (p.y) load(static_cast<const T*>(p.y) + at, y);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      sum[i] = fused(g[i], y[i], sum[i]);
      dy[i] = g[i] * gate[i];
    }
    if (p.dy) store(dy, static_cast<T*>(p.dy) + at);
  }
  if (!p.chunks) return;
  const Index offset = static_cast<Index>(block_y()) * lanes * N;
  store_columns(sum, seat, p.width - offset, reinterpret_cast<float*>(shared_memory()),
                p.chunks + static_cast<Index>(block_x()) * p.width + offset);
}

}  // namespace

Status gate(const Gate& p, Stream stream) {
  return by_storage(p.storage, [&](auto x) {
    using T = decltype(x);
    const auto by = [&](auto kernel, int numbers) {
      const auto [walk, slices] = slices_of(p.width, numbers);
      return launch(kernel, {parts(p.groups.rows, walk.rows()), slices}, walk.threads, 0, stream, p, walk.lanes);
    };
    constexpr int N = 16 / sizeof(T);
    return under_packs<T>(p.groups) && in_packs<T>(p.width, p.x, p.gate, p.y, p.out) ? by(gate_rows<T, N>, N)
                                                                                     : by(gate_rows<T, 1>, 1);
  });
}

Status gate_back(const GateBack& p, Stream stream) {
  return by_storage(p.storage, [&](auto x) {
    using T = decltype(x);
    const auto by = [&](auto kernel, int numbers) {
      const auto [walk, slices] = slices_of(p.width, numbers);
      return launch(kernel, {chunk_rows(p.groups), slices}, walk.threads, column_room(walk, numbers, 1), stream, p,
                    walk.lanes);
    };
    constexpr int N = 16 / sizeof(T);
    return under_packs<T>(p.groups) && in_packs<T>(p.width, p.gate, p.y, p.grad, p.dy, p.chunks)
               ? by(gate_rows_back<T, N>, N)
               : by(gate_rows_back<T, 1>, 1);
  });
}

}  // namespace ditto_cuda
