#include "blas_library.h"

#include <dlfcn.h>

#include <string>

#include <ditto/error.h>

namespace ditto_cuda {

namespace {

constexpr int kMajor = CUBLAS_VER_MAJOR;

[[noreturn]] void refuse(const std::string& why) {
  throw ditto::Error(ditto::ErrorKind::plugin, "cublasLt, which products on a GPU are computed by", why,
                     "install CUDA " + std::to_string(kMajor) +
                         "'s cuBLAS beside LibTorch, or leave products to LibTorch by kernels.linear = \"reference\" "
                         "and kernels.linear_gelu_tanh = \"reference\"");
}

BlasLibrary opened() {
  const std::string name = "libcublasLt.so." + std::to_string(kMajor);
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) refuse("cannot be opened: " + std::string(dlerror()));
  const auto find = [&]<class F>(F& function, const char* symbol) {
    function = reinterpret_cast<F>(dlsym(library, symbol));
    if (!function) refuse("has no " + std::string(symbol));
  };
  BlasLibrary all{};
  find(all.version, "cublasLtGetVersion");
  find(all.create, "cublasLtCreate");
  find(all.destroy, "cublasLtDestroy");
  find(all.make_product, "cublasLtMatmulDescCreate");
  find(all.free_product, "cublasLtMatmulDescDestroy");
  find(all.set_product, "cublasLtMatmulDescSetAttribute");
  find(all.make_matrix, "cublasLtMatrixLayoutCreate");
  find(all.free_matrix, "cublasLtMatrixLayoutDestroy");
  find(all.make_preference, "cublasLtMatmulPreferenceCreate");
  find(all.free_preference, "cublasLtMatmulPreferenceDestroy");
  find(all.set_preference, "cublasLtMatmulPreferenceSetAttribute");
  find(all.choose, "cublasLtMatmulAlgoGetHeuristic");
  find(all.check, "cublasLtMatmulAlgoCheck");
  find(all.multiply, "cublasLtMatmul");
  return all;
}

}  // namespace

const BlasLibrary& blas_library() {
  static const BlasLibrary library = opened();
  return library;
}

}  // namespace ditto_cuda
