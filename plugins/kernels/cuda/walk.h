// How blocks go over rows: a thread has one pack of a row's columns, so that what a column is summed to stays with it.
#pragma once

#include "numbers.h"

namespace ditto_cuda {

constexpr int kWarp = 32, kMostThreads = 1024;
constexpr int kThreads = 128;   // of a block whose rows are narrow
constexpr Status kInvalid = 1;  // cudaErrorInvalidValue: rows wider than a block, or not aligned as wide ones must be

inline Index parts(Index all, Index of) { return (all + of - 1) / of; }

// Threads of a row, and of a block: a power of two up to a warp, several rows to a block; or whole warps, one row.
struct Walk {
  int lanes, threads;
  int rows() const { return threads / lanes; }  // at once
};
inline Walk walk_of(Index width, int numbers_of_pack) {
  const Index packs = parts(width, numbers_of_pack);
  int lanes = 1;
  while (lanes < kWarp && lanes < packs) lanes *= 2;
  if (packs > kWarp) lanes = static_cast<int>((packs + kWarp - 1) / kWarp * kWarp);
  return {lanes, lanes <= kWarp ? kThreads : lanes};
}
// The same of columns that nothing goes along: `count` slices beside each other, about as wide as each other, so that
// rows may be as wide as they like.
struct Slices {
  Walk walk;
  Index count;
};
constexpr int kSliceThreads = 256;  // of a block, at most
inline Slices slices_of(Index width, int numbers_of_pack) {
  const Index packs = parts(width, numbers_of_pack), of_slice = parts(packs, parts(packs, kSliceThreads));
  const Walk walk = walk_of(of_slice * numbers_of_pack, numbers_of_pack);
  return {walk, parts(packs, walk.lanes)};
}

// Where a thread sits: in which of the block's rows, and where in it.
struct Seat {
  DITTO_DEVICE explicit Seat(int lanes_)
      : lanes(lanes_), lane(thread_at() % lanes_), row(thread_at() / lanes_), rows(thread_count() / lanes_) {}
  int lanes, lane, row, rows;
};

constexpr std::size_t sum_room(int sums) { return sizeof(float) * static_cast<std::size_t>(sums) * kWarp; }

// Sums over a row's threads, which all get them: lanes by halves, then warps in order. Every thread of the block calls
// it. `room`: sum_room(M) bytes of shared memory, that no other sum uses until all threads have met again.
template <int M>
DITTO_DEVICE void row_sums(float (&x)[M], const Seat& seat, float* room) {
#pragma unroll
  for (int m = 0; m < M; ++m)
    for (int mask = (seat.lanes < kWarp ? seat.lanes : kWarp) / 2; mask > 0; mask /= 2)
      x[m] = x[m] + exchange_xor(x[m], mask);
  if (seat.lanes <= kWarp) return;
  const int warp = thread_at() / kWarp;
  if (thread_at() % kWarp == 0) {
#pragma unroll
    for (int m = 0; m < M; ++m) room[m * kWarp + warp] = x[m];
  }
  block_barrier();
#pragma unroll
  for (int m = 0; m < M; ++m) {
    x[m] = room[m * kWarp];
    for (int w = 1; w < seat.lanes / kWarp; ++w) x[m] = x[m] + room[m * kWarp + w];
  }
}

// The largest of a row's numbers, of which each thread has one; as row_sums, with room of one sum.
DITTO_DEVICE float row_largest(float x, const Seat& seat, float* room) {
  for (int mask = (seat.lanes < kWarp ? seat.lanes : kWarp) / 2; mask > 0; mask /= 2)
    x = larger(x, exchange_xor(x, mask));
  if (seat.lanes <= kWarp) return x;
  if (thread_at() % kWarp == 0) room[thread_at() / kWarp] = x;
  block_barrier();
  x = room[0];
  for (int w = 1; w < seat.lanes / kWarp; ++w) x = larger(x, room[w]);
  return x;
}

}  // namespace ditto_cuda
