# One operation of IEEE arithmetic where one is written, so that the emulation (tests/cuda_emulated) has a GPU's bits.
set_source_files_properties(${cuda_sources} PROPERTIES COMPILE_OPTIONS "-fmad=false")
# blas_library.h has cublasLt's types; the library itself is opened when the first product asks for it.
if(TARGET CUDA::toolkit)
  set(plugin_libraries CUDA::toolkit ${CMAKE_DL_LIBS})
else()
  set(plugin_lacks "the CUDA toolkit's headers")
endif()
