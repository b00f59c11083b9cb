# Highway: vector instructions chosen at run time.
find_library(DITTO_HWY hwy REQUIRED)
set(plugin_libraries ${DITTO_HWY})
# These files include themselves once for each instruction set. On ARM that is NEON: gcc 12 dies of SVE's header behind a
# precompiled one.
set_source_files_properties(${folder}/norm_modulate.cpp ${folder}/elementwise.cpp ${folder}/group_norm.cpp ${folder}/repeat.cpp PROPERTIES INCLUDE_DIRECTORIES ${folder}
  COMPILE_DEFINITIONS "HWY_DISABLED_TARGETS=(HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)")
# Highway of this version does not know the instruction. They include no LibTorch, whose precompiled header is made for any
# processor.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set_source_files_properties(${folder}/attention_avx512bf16.cpp ${folder}/linear_avx512bf16.cpp PROPERTIES SKIP_PRECOMPILE_HEADERS ON COMPILE_OPTIONS
    "-O3;-fno-math-errno;-fno-trapping-math;-Wno-maybe-uninitialized;-Wno-uninitialized;-mavx512f;-mavx512dq;-mavx512vl;-mavx512bw;-mavx512bf16;-mfma;-mtune=znver3;-mprefer-vector-width=512")
endif()
