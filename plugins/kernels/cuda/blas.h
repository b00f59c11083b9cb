// Products by cublasLt, with what is done to their results on the way. No LibTorch here.
//
// Each shape has one algorithm for as long as the process lives: what cublasLt thinks the fastest of those that add in
// an order of their own choosing but always the same one, never by atomics. So bits depend on operands and sizes alone.
#pragma once

#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "blas_library.h"
#include "kernels.h"

namespace ditto_cuda {

// What is done to a product C = A B beside storing it as D.
enum class After {
  nothing,    // D = C
  bias,       // D = C + bias
  gelu,       // argument = C + bias, D = GELU(argument) in the tanh form
  gelu_back,  // D = C GELU'(argument), and sums [N]: of D over its rows
  sums_of_a,  // D = C, and sums [M]: of A over K
};

// Matrices whose numbers follow one another row by row, from places that 16 bytes divide.
struct Product {
  Index M, N, K;
  const void *a, *b;        // A [M, K], B [K, N]
  bool a_turned, b_turned;  // it lies there as its transpose
  void* d;                  // [M, N]
  Storage storage, result;  // of A and B; of D, bias, argument and sums. C is added up in fp32
  After after = After::nothing;
  const void* bias = nullptr;
  void* argument = nullptr;  // [M, N]
  void* sums = nullptr;
  bool adds = false;  // C is added to what D holds, by one rounding
};

class Blas {
 public:
  // `kept`: algorithms by shapes, as kept() gave them, so that a run goes on with those that it began with. `set`: for
  // errors, the kernel set's name. Throws Error(config) for one that cannot be read.
  explicit Blas(const std::map<std::string, std::string>& kept = {}, std::string set = "cuda");
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  // Bytes of the GPU's memory that multiply needs besides; none: cublasLt has no algorithm for it. Throws Error(plugin)
  // where there is no cublasLt, and Error(config) where it does not know the one that is kept for this shape.
  std::optional<std::size_t> room(const Product& p);
  // Launches it; of one that room() knows. Gives cublasLt's status, 0 when it is launched.
  Status multiply(const Product& p, void* room, Stream stream);
  // All algorithms that it was given or has chosen, by the text of their shapes.
  std::map<std::string, std::string> kept();

 private:
  using Shape = std::array<Index, 8>;
  struct Algorithm {
    bool there;
    cublasLtMatmulAlgo_t way;
    std::size_t room, version;  // version: of the cublasLt that chose it
  };
  const Algorithm& algorithm(const Product& p);
  Algorithm read(const std::string& shape, const std::string& text) const;

  const std::string set_;
  std::mutex mutex_;
  const BlasLibrary* library_ = nullptr;  // from the first product on
  cublasLtHandle_t handle_ = nullptr;
  std::map<Shape, Algorithm> known_;
  std::map<std::string, Algorithm> kept_;  // by the text of their shapes
};

}  // namespace ditto_cuda
