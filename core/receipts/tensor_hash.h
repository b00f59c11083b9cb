// A hash of tensors that is a sum over their numbers: whoever holds a part of them hashes that part, and the sum of all
// parts is the hash, however they are cut. So every layout of ranks has the same number, and one all-reduce makes it.
//
// A tensor is its words of 32 bits in row-major order: the bits of each number (two words of a number of 64 bits, low
// one first; a smaller number is widened with zeros). Word i stands at place j = i mod 1024 of block b = i / 1024.
// All modulo 2^64, for the lanes l = 0 and 1:
//
//   hash_l = sum over blocks b of (splitmix64(s_l, b) | 1) * sum over places j of T_l[j] * word[1024 b + j]
//
//   T_l[j]  the upper 32 bits of splitmix64(l, j)            s_l  XXH3-64 of the tensor's name, with seed l
//   splitmix64(s, n)  the n-th number, from 0, of that generator started at s
//
// A changed word changes its product, whatever else stays; two words that are exchanged do, but with probability 2^-32
// a lane, the lanes being independent; -0 and +0, and two bit patterns of nan, are different words. It finds mistakes
// and damage: it is no secret, and who is free to choose numbers can make two tensors of one hash.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <ditto/parallel/layout.h>

#include "core/receipts/word_sum.h"

namespace ditto {

struct HashSum {
  std::array<std::uint64_t, kHashLanes> lanes{};
  HashSum& operator+=(const HashSum& other) {
    for (std::size_t lane = 0; lane < kHashLanes; ++lane) lanes[lane] += other.lanes[lane];
    return *this;
  }
  friend bool operator==(const HashSum&, const HashSum&) = default;
  std::string text() const;  // 32 hex digits, lane 0 first
};

// Which tensor it is: the seeds s_l.
struct HashKey {
  std::array<std::uint64_t, kHashLanes> seeds{};
  explicit HashKey(std::string_view name);
  HashKey of(std::int64_t number) const;  // of a sample's tensor of this name: the seeds splitmix64(s_l, number)
};

// Takes tensors up, and hashes them all at once on this process's threads.
class TensorHash {
 public:
  // A whole tensor. It must not change until sum().
  void add(const HashKey& key, const torch::Tensor& tensor);
  // Of a tensor of `full_shape` the rectangles that lie in `local`; of these the numbers [begin, end) of `local`, row
  // by row.
  void add(const HashKey& key, const std::vector<int64_t>& full_shape, const std::vector<Rectangle>& rectangles,
           const torch::Tensor& local, int64_t begin = 0, int64_t end = std::numeric_limits<int64_t>::max());
  // Of every parameter what is here, of copies on several ranks the first's alone: the sum over all ranks of the mesh
  // is the hash of the whole parameters. `tensors`: along the entries, as their tensors lie; undefined: none of it.
  void add(const Layout& layout, const Mesh& mesh, const std::function<torch::Tensor(size_t)>& tensors);
  static bool counts(const LayoutEntry& entry, const Mesh& mesh);  // it is the first copy

  HashSum sum();  // of this process; begins anew

 private:
  struct Run {
    const std::uint32_t* words;
    std::uint64_t first;  // of the words, in the whole tensor
    std::int64_t count;
    HashKey key;
  };
  void add_run(const HashKey& key, const std::uint32_t* words, std::uint64_t first, std::int64_t count);

  std::vector<Run> runs_;
  std::deque<torch::Tensor> held_;  // what the runs lie in
};

}  // namespace ditto
