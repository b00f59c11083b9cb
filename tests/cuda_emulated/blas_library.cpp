// cublasLt on the CPU, as far as plugins/kernels/cuda asks for it: a product is one operation, in matrices by columns
// as NVIDIA's documentation has them. It sums in fp64, as no order of sums is promised, and refuses what a GPU's would.
#include "blas_library.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numbers>
#include <vector>

#include "emulated.h"
#include "numbers.h"

namespace ditto_cuda {

namespace {

constexpr std::size_t kVersion = 1, kRoom = 1024;  // bytes that it wants of whoever calls, and writes
constexpr std::uint64_t kAlgorithm = 7;

struct Matrix {
  cudaDataType type;
  std::uint64_t rows, columns;
  std::int64_t step;  // from column to column
};
struct Product {
  cublasOperation_t first = CUBLAS_OP_N, second = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void *list = nullptr, *argument = nullptr;
  std::int64_t argument_step = 0;
};
struct Preference {
  std::uint64_t room = 0;
  std::uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
};

const Matrix& of(cublasLtMatrixLayout_t x) { return *reinterpret_cast<const Matrix*>(x); }
Product& of(cublasLtMatmulDesc_t x) { return *reinterpret_cast<Product*>(x); }
Preference& of(cublasLtMatmulPreference_t x) { return *reinterpret_cast<Preference*>(x); }

double get(const void* at, cudaDataType type, std::int64_t i) {
  if (type == CUDA_R_32F) return static_cast<const float*>(at)[i];
  const auto bits = static_cast<const std::uint16_t*>(at)[i];
  return type == CUDA_R_16BF ? from_bf16(bits) : from_fp16(bits);
}
void set(double x, void* at, cudaDataType type, std::int64_t i) {
  const auto single = static_cast<float>(x);
  if (type == CUDA_R_32F)
    static_cast<float*>(at)[i] = single;
  else
    static_cast<std::uint16_t*>(at)[i] = type == CUDA_R_16BF ? to_bf16(single) : to_fp16(single);
}

bool sums_list(const Product& p) {
  return p.epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD || p.epilogue == CUBLASLT_EPILOGUE_BGRADB;
}
bool has_argument(const Product& p) {
  return p.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || p.epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD;
}

cublasStatus_t fits(const Product& p, const Matrix& a, const Matrix& b, const Matrix& c, const Matrix& d) {
  const auto rows = p.first == CUBLAS_OP_N ? a.rows : a.columns, inner = p.first == CUBLAS_OP_N ? a.columns : a.rows;
  const auto other = p.second == CUBLAS_OP_N ? b.rows : b.columns,
             columns = p.second == CUBLAS_OP_N ? b.columns : b.rows;
  const bool shapes =
      inner == other && d.rows == rows && d.columns == columns && c.rows == rows && c.columns == columns;
  bool steps = true;
  for (const auto* x : {&a, &b, &c, &d}) steps = steps && x->step >= static_cast<std::int64_t>(x->rows);
  const bool list = p.epilogue == CUBLASLT_EPILOGUE_DEFAULT || p.list;
  if (!shapes || !steps || !list || c.type != d.type) return CUBLAS_STATUS_INVALID_VALUE;
  if (has_argument(p) && (!p.argument || p.argument_step % 8 != 0 || p.argument_step < static_cast<std::int64_t>(rows)))
    return CUBLAS_STATUS_INVALID_VALUE;
  const bool wider = d.type == CUDA_R_32F && (p.epilogue == CUBLASLT_EPILOGUE_DEFAULT || sums_list(p));
  return a.type == b.type && (a.type == d.type || wider) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t make_product(cublasLtMatmulDesc_t* made, cublasComputeType_t compute, cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *made = reinterpret_cast<cublasLtMatmulDesc_t>(new Product);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t free_product(cublasLtMatmulDesc_t p) { return delete &of(p), CUBLAS_STATUS_SUCCESS; }

template <class T>
cublasStatus_t take(T& to, const void* from, std::size_t bytes) {
  if (bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t set_product(cublasLtMatmulDesc_t p, cublasLtMatmulDescAttributes_t what, const void* from,
                           std::size_t bytes) {
  auto& to = of(p);
  switch (what) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return take(to.first, from, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return take(to.second, from, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return take(to.epilogue, from, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return take(to.list, from, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return take(to.argument, from, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return take(to.argument_step, from, bytes);
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t make_matrix(cublasLtMatrixLayout_t* made, cudaDataType type, std::uint64_t rows, std::uint64_t columns,
                           std::int64_t step) {
  *made = reinterpret_cast<cublasLtMatrixLayout_t>(new Matrix{type, rows, columns, step});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t free_matrix(cublasLtMatrixLayout_t x) { return delete &of(x), CUBLAS_STATUS_SUCCESS; }

cublasStatus_t make_preference(cublasLtMatmulPreference_t* made) {
  *made = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t free_preference(cublasLtMatmulPreference_t p) { return delete &of(p), CUBLAS_STATUS_SUCCESS; }
cublasStatus_t set_preference(cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t what, const void* from,
                              std::size_t bytes) {
  std::uint32_t alignment = 0;
  switch (what) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return take(of(p).room, from, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return take(of(p).schemes, from, bytes);
    default: return take(alignment, from, bytes);
  }
}

// Atomics where they are allowed, which no test may see.
cublasStatus_t choose(cublasLtHandle_t, cublasLtMatmulDesc_t p, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                      cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference,
                      int wanted, cublasLtMatmulHeuristicResult_t found[], int* count) {
  *count = 0;
  if (const auto status = fits(of(p), of(a), of(b), of(c), of(d))) return status;
  if (wanted < 1 || of(preference).room < kRoom) return CUBLAS_STATUS_NOT_SUPPORTED;
  found[0] = {};
  found[0].algo.data[0] = kAlgorithm;
  found[0].algo.data[1] = of(preference).schemes & CUBLASLT_REDUCTION_SCHEME_INPLACE;
  found[0].workspaceSize = kRoom;
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t check(cublasLtHandle_t, cublasLtMatmulDesc_t p, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                     cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* way,
                     cublasLtMatmulHeuristicResult_t* result) {
  result->workspaceSize = kRoom;
  if (way->data[0] != kAlgorithm || way->data[1] != 0) return CUBLAS_STATUS_INVALID_VALUE;
  return fits(of(p), of(a), of(b), of(c), of(d));
}

double slope(double x) {
  const double root = std::sqrt(2 / std::numbers::pi), cubic = 0.044715;
  const double t = std::tanh(root * (x + cubic * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * cubic * x * x);
}
double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

cublasStatus_t multiply(cublasLtHandle_t, cublasLtMatmulDesc_t what, const void* alpha, const void* A,
                        cublasLtMatrixLayout_t a_layout, const void* B, cublasLtMatrixLayout_t b_layout,
                        const void* beta, const void* C, cublasLtMatrixLayout_t c_layout, void* D,
                        cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* way, void* room,
                        std::size_t room_bytes, cudaStream_t stream) {
  const auto& p = of(what);
  const auto &a = of(a_layout), &b = of(b_layout), &d = of(d_layout);
  cublasLtMatmulHeuristicResult_t result{};
  if (const auto status = check(nullptr, what, a_layout, b_layout, c_layout, d_layout, way, &result)) return status;
  for (const void* at : {A, B, C, static_cast<const void*>(D), static_cast<const void*>(p.argument)})
    if (reinterpret_cast<std::uintptr_t>(at) % 16 != 0) return CUBLAS_STATUS_INVALID_VALUE;
  if (room_bytes < kRoom || !room) return CUBLAS_STATUS_INVALID_VALUE;
  const bool adds = *static_cast<const float*>(beta) == 1;
  if (*static_cast<const float*>(alpha) != 1 || (!adds && *static_cast<const float*>(beta) != 0))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (adds && C != D) return CUBLAS_STATUS_NOT_SUPPORTED;
  const emulated::Memory memory(stream);
  std::memset(room, 0xff, kRoom);
  const auto rows = static_cast<std::int64_t>(d.rows), columns = static_cast<std::int64_t>(d.columns);
  const auto inner = static_cast<std::int64_t>(p.first == CUBLAS_OP_N ? a.columns : a.rows);
  const auto first = [&](std::int64_t i, std::int64_t k) {
    return get(A, a.type, p.first == CUBLAS_OP_N ? k * a.step + i : i * a.step + k);
  };
  const auto second = [&](std::int64_t k, std::int64_t j) {
    return get(B, b.type, p.second == CUBLAS_OP_N ? j * b.step + k : k * b.step + j);
  };
  std::vector<double> sums(static_cast<std::size_t>(p.epilogue == CUBLASLT_EPILOGUE_BGRADB ? columns : rows), 0);
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  std::vector<double> left(at(inner * rows)), right(at(inner));
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t k = 0; k < inner; ++k) left[at(i * inner + k)] = first(i, k);
  for (std::int64_t j = 0; j < columns; ++j) {
    for (std::int64_t k = 0; k < inner; ++k) right[at(k)] = second(k, j);
    if (p.epilogue == CUBLASLT_EPILOGUE_BGRADB)
      for (const double x : right) sums[at(j)] += x;
    for (std::int64_t i = 0; i < rows; ++i) {
      double x = 0;
      for (std::int64_t k = 0; k < inner; ++k) x += left[at(i * inner + k)] * right[at(k)];
      if (adds) x += get(C, d.type, j * d.step + i);
      const auto place = j * p.argument_step + i;
      if (p.epilogue & CUBLASLT_EPILOGUE_BIAS) x += get(p.list, d.type, i);
      if (p.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) set(x, p.argument, d.type, place), x = gelu(x);
      if (p.epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD) x *= slope(get(p.argument, d.type, place)), sums[at(i)] += x;
      set(x, D, d.type, j * d.step + i);
    }
  }
  for (std::size_t i = 0; sums_list(p) && i < sums.size(); ++i)
    set(sums[i], p.list, d.type, static_cast<std::int64_t>(i));
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t create(cublasLtHandle_t* made) {
  static int here = 0;
  *made = reinterpret_cast<cublasLtHandle_t>(&here);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t destroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }

}  // namespace

const BlasLibrary& blas_library() {
  static const BlasLibrary library{[] { return kVersion; },
                                   create,
                                   destroy,
                                   make_product,
                                   free_product,
                                   set_product,
                                   make_matrix,
                                   free_matrix,
                                   make_preference,
                                   free_preference,
                                   set_preference,
                                   choose,
                                   check,
                                   multiply};
  return library;
}

}  // namespace ditto_cuda
