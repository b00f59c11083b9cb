// Sums over rows: the groups of rows, and what is made of chunks.
#include "chunks.h"

namespace ditto_cuda {

namespace {

constexpr int kOrderThreads = 256, kColumns = 32, kBeside = 16;

// A block a group: its rows, in order, behind those of the groups before.
DITTO_KERNEL(kOrderThreads) order_rows(const Index* of_row, Index rows, Index groups, int* order, int* starts) {
  int* const of_warps = reinterpret_cast<int*>(shared_memory());  // [2][warps], in turn: rows before, rows of the group
  const int warps = thread_count() / kWarp, warp = thread_at() / kWarp, lane = thread_at() % kWarp;
  const Index group = block_x();
  int before = 0;  // rows of groups before this one
  for (int pass = 0; pass < 2; ++pass) {
    int found = before;
    for (Index first = 0, round = 0; first < rows; first += thread_count(), ++round) {
      const Index row = first + thread_at(), of = row < rows ? of_row[row] : -1;
      const std::uint32_t yes = ballot(of >= 0 && (pass == 0 ? of < group : of == group));
      int* const counts = of_warps + (round & 1) * warps;
      if (lane == 0) counts[warp] = count_bits(yes);
      block_barrier();
      int place = found + count_bits(yes & ((1u << lane) - 1));
      for (int w = 0; w < warps; ++w) {
        if (w < warp) place += counts[w];
        found += counts[w];
      }
      if (pass == 1 && (yes >> lane & 1)) order[place] = static_cast<int>(row);
    }
    if (pass == 0) before = found;
    if (pass == 0 && thread_at() == 0) starts[group] = found;
    if (pass == 1 && thread_at() == 0 && group + 1 == groups) starts[groups] = found;
    block_barrier();
  }
}

// A block kColumns columns of a group: warps take chunks in turn, and are added in their order.
template <class T>
DITTO_KERNEL(kColumns* kBeside)
add_chunks_of(const float* chunks, Groups groups, Index width, void* out) {
  float* const room = reinterpret_cast<float*>(shared_memory());  // [kBeside][kColumns]
  const int beside = thread_at() / kColumns, lane = thread_at() % kColumns;
  const Index across = (width + kColumns - 1) / kColumns, group = block_x() / across,
              column = block_x() % across * kColumns + lane;
  const Index first = first_chunk(groups, group),
              count = (first_of_group(groups, group + 1) - first_of_group(groups, group) + kChunk - 1) / kChunk;
  float sum = 0;
  if (column < width)
    for (Index c = beside; c < count; c += kBeside) sum = sum + chunks[(first + c) * width + column];
  room[thread_at()] = sum;
  block_barrier();
  if (beside > 0 || column >= width) return;
  for (int b = 1; b < kBeside; ++b) sum = sum + room[b * kColumns + lane];
  put(sum, static_cast<T*>(out)[group * width + column]);
}

}  // namespace

Status group_rows(const Index* of_row, Index rows, Index groups, int* order, int* starts, Stream stream) {
  return launch(order_rows, {groups}, kOrderThreads, 2 * kOrderThreads / kWarp * sizeof(int), stream, of_row, rows,
                groups, order, starts);
}

Status add_chunks(const float* chunks, const Groups& groups, Index width, void* out, Storage storage, Stream stream) {
  return by_storage(storage, [&](auto x) {
    return launch(add_chunks_of<decltype(x)>, {groups.count * parts(width, kColumns)}, kColumns * kBeside,
                  sizeof(float) * kColumns * kBeside, stream, chunks, groups, width, out);
  });
}

}  // namespace ditto_cuda
