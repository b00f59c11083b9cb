// Chunks of rows: what one block sums.
#pragma once

#include "walk.h"

namespace ditto_cuda {

DITTO_DEVICE Index first_of_group(const Groups& groups, Index group) {
  return groups.starts ? groups.starts[group] : group * (groups.rows / groups.count);
}
DITTO_DEVICE Index group_of(const Groups& groups, Index row) {
  return groups.of_row ? groups.of_row[row] : row / (groups.rows / groups.count);
}
// Where the row begins that a group is under.
DITTO_DEVICE Index place_of(const Groups& groups, Index group, Index width) {
  return group * (groups.apart ? groups.apart : width);
}
// Where a group's chunks begin among all chunks: no two groups share a place, whatever their sizes.
DITTO_DEVICE Index first_chunk(const Groups& groups, Index group) {
  return first_of_group(groups, group) / kChunk + group;
}

// Whether those rows all begin where a pack does.
template <class T>
bool under_packs(const Groups& groups) {
  return groups.apart % static_cast<Index>(16 / sizeof(T)) == 0;
}

struct Chunk {
  Index group, first, end;  // of the rows as `order` has them; none where first = end
};
DITTO_DEVICE Chunk chunk_at(const Groups& groups, Index place) {
  Index group = 0, beyond = groups.count;
  while (beyond - group > 1) {
    const Index middle = (group + beyond) / 2;
    if (first_chunk(groups, middle) <= place)
      group = middle;
    else
      beyond = middle;
  }
  const Index end = first_of_group(groups, group + 1);
  const Index first = first_of_group(groups, group) + (place - first_chunk(groups, group)) * kChunk;
  if (first >= end) return {group, end, end};
  return {group, first, first + kChunk < end ? first + kChunk : end};
}
DITTO_DEVICE Index row_at(const Groups& groups, Index place) { return groups.order ? groups.order[place] : place; }

// Bytes of shared memory for what rows that a block walks at once have summed of `lists` columns each.
inline std::size_t column_room(const Walk& walk, int numbers_of_pack, int lists) {
  const auto numbers = walk.threads * numbers_of_pack * lists;
  return walk.rows() > 1 ? sizeof(float) * static_cast<std::size_t>(numbers) : 0;
}
// Stores the sum over the block's rows of each column, rows in order. Every thread of the block calls it.
template <int N>
DITTO_DEVICE void store_columns(const float (&sum)[N], const Seat& seat, Index width, float* room, float* to) {
  const int column = seat.lane * N;
  if (seat.rows == 1) {
    if (column < width) store(sum, to + column);
    return;
  }
  store(sum, room + thread_at() * N);
  block_barrier();
  if (seat.row > 0 || column >= width) return;
  float all[N];
  load(room + seat.lane * N, all);
  for (int row = 1; row < seat.rows; ++row) {
    float more[N];
    load(room + (row * seat.lanes + seat.lane) * N, more);
#pragma unroll
    for (int i = 0; i < N; ++i) all[i] = all[i] + more[i];
  }
  store(all, to + column);
}

}  // namespace ditto_cuda
