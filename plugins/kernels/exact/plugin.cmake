# The kernels once for each instruction set, which are chosen at run time. They include no LibTorch, so its precompiled
# header, made for any processor, is not for them.
set(exact_flags -O3 -fno-math-errno -fno-trapping-math $<$<CXX_COMPILER_ID:GNU>:-fno-tree-loop-distribute-patterns> -Wno-psabi
    -Wno-maybe-uninitialized)
set_source_files_properties(${folder}/avx512.cpp ${folder}/avx512bf16.cpp ${folder}/avx2.cpp ${folder}/neon.cpp
                            ${folder}/plain.cpp ${folder}/room.cpp PROPERTIES SKIP_PRECOMPILE_HEADERS ON COMPILE_OPTIONS "${exact_flags}")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(exact_avx512 "${exact_flags};-mavx512f;-mavx512dq;-mavx512vl;-mavx512bw;-mfma;-mtune=znver3;-mprefer-vector-width=512")
  set_source_files_properties(${folder}/avx512.cpp PROPERTIES COMPILE_OPTIONS "${exact_avx512}")
  set_source_files_properties(${folder}/avx512bf16.cpp PROPERTIES COMPILE_OPTIONS "${exact_avx512};-mavx512bf16")
  set_source_files_properties(${folder}/avx2.cpp PROPERTIES COMPILE_OPTIONS "${exact_flags};-mavx2;-mfma;-mtune=znver3")
endif()
