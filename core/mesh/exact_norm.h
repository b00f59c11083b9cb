// The sum of squares of fp32 numbers without any rounding: whole numbers in bins, which may be added in any order by
// anyone. So the global norm has the same bits on any number of ranks, shards and threads.
#pragma once

#include <array>
#include <cstdint>

#include <ditto/parallel/layout.h>

namespace ditto {

// x = f 2^(e - 150) with f below 2^24, so x^2 = f^2 2^(2e - 300): a whole number of 2^-300, cut into digits of 32 bits.
// A bin holds the sum of one place's digits, and has 31 bits more for carries.
class SquareSum {
 public:
  void add(const float* x, int64_t count);
  void add(const SquareSum& other);
  // The sum's root in fp64, rounded twice (the sum, the root); of an infinite number infinite, of a NaN NaN.
  double root() const;

  static constexpr int64_t kBins = 20;
  // As a tensor's numbers, for sums over ranks; after this each bin but the last is below 2^32, so 2^31 ranks may be
  // added.
  std::array<int64_t, kBins + 2> numbers();
  void set(const int64_t* numbers);

 private:
  void carry();
  std::array<int64_t, kBins> bins_{};
  int64_t infinite_ = 0, nan_ = 0;
};

// The 2-norm of all gradients of the layout (fp32, on the CPU; one that is not defined counts nothing), rounded to
// fp32, the same on every rank. Along `axes`, which hold all that ranks here and elsewhere hold different parameters
// along, of copies the first counts. Throws Error(distributed) if a peer is lost.
double exact_norm(const Layout& layout, const Mesh& mesh, const AxisSet& axes);

}  // namespace ditto
