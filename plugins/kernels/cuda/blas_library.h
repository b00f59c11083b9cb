// Those functions of cublasLt that products call: of NVIDIA's library (blas_library.cpp), or of one on the CPU where
// there is no GPU (tests/cuda_emulated/blas_library.cpp).
#pragma once

#include <cublasLt.h>

namespace ditto_cuda {

struct BlasLibrary {
  decltype(&cublasLtGetVersion) version;
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtMatmulDescCreate) make_product;
  decltype(&cublasLtMatmulDescDestroy) free_product;
  decltype(&cublasLtMatmulDescSetAttribute) set_product;
  decltype(&cublasLtMatrixLayoutCreate) make_matrix;
  decltype(&cublasLtMatrixLayoutDestroy) free_matrix;
  decltype(&cublasLtMatmulPreferenceCreate) make_preference;
  decltype(&cublasLtMatmulPreferenceDestroy) free_preference;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;
  decltype(&cublasLtMatmulAlgoGetHeuristic) choose;
  decltype(&cublasLtMatmulAlgoCheck) check;
  decltype(&cublasLtMatmul) multiply;
};

// Opened at the first call, so that this plugin loads where there is none. Throws Error(plugin) then.
const BlasLibrary& blas_library();

}  // namespace ditto_cuda
