# Imported targets for LibTorch in an unpacked wheel or zip: ditto::torch (CPU), ditto::torch_cuda, ditto::gloo.
# find_package(Torch) of a CUDA wheel demands a CUDA toolkit, even for programs that use none: hence our own.
# In: DITTO_LIBTORCH, the folder with include/ and lib/.

foreach(part include/torch/csrc/api/include/torch/torch.h lib/libtorch_cpu.so lib/libc10.so)
  if(NOT EXISTS "${DITTO_LIBTORCH}/${part}")
    message(FATAL_ERROR "DITTO_LIBTORCH = '${DITTO_LIBTORCH}' has no ${part}; "
                        "run ./dev build, which fetches LibTorch, or pass -DDITTO_LIBTORCH=FOLDER with include/ and lib/")
  endif()
endforeach()

# The string ABI is LibTorch's to decide; the mangled name of c10::Error's constructor tells it.
file(STRINGS "${DITTO_LIBTORCH}/lib/libc10.so" ditto_new_abi REGEX "^_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx11"
     LIMIT_COUNT 1)
if(ditto_new_abi)
  set(DITTO_CXX11_ABI 1)
else()
  set(DITTO_CXX11_ABI 0)
endif()

function(ditto_import_torch name libraries)
  if(TARGET ditto::${name})
    return()
  endif()
  add_library(ditto::${name} INTERFACE IMPORTED)
  list(TRANSFORM libraries PREPEND "${DITTO_LIBTORCH}/lib/")
  # --no-as-needed: LibTorch's parts find one another at load time, through no symbol the linker can see.
  # --disable-new-dtags: DT_RPATH goes before LD_LIBRARY_PATH, DT_RUNPATH behind it, and another PyTorch's libraries there would
  # compute other bits, in programs and plugins of users, too.
  target_link_options(ditto::${name} INTERFACE -Wl,--disable-new-dtags)
  target_link_libraries(ditto::${name} INTERFACE -Wl,--no-as-needed ${libraries} -Wl,--as-needed
                                                 -Wl,--allow-shlib-undefined pthread)
endfunction()

ditto_import_torch(torch "libtorch_cpu.so;libc10.so")
set_target_properties(ditto::torch PROPERTIES
  INTERFACE_COMPILE_DEFINITIONS
    "USE_DISTRIBUTED;USE_C10D_GLOO;FMT_HEADER_ONLY;_GLIBCXX_USE_CXX11_ABI=${DITTO_CXX11_ABI}"
  INTERFACE_INCLUDE_DIRECTORIES "${DITTO_LIBTORCH}/include;${DITTO_LIBTORCH}/include/torch/csrc/api/include"
  INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${DITTO_LIBTORCH}/include;${DITTO_LIBTORCH}/include/torch/csrc/api/include"
  INTERFACE_COMPILE_FEATURES cxx_std_20)

find_package(CUDAToolkit QUIET)
if(CUDAToolkit_FOUND AND EXISTS "${DITTO_LIBTORCH}/lib/libtorch_cuda.so")
  ditto_import_torch(torch_cuda "libtorch_cuda.so;libc10_cuda.so")
  target_link_libraries(ditto::torch_cuda INTERFACE ditto::torch CUDA::toolkit)
endif()

# ProcessGroupGloo.hpp names gloo's types, whose headers the wheel lacks; the code itself is in libtorch_cpu.
find_path(DITTO_GLOO_INCLUDE gloo/context.h DOC "Folder with gloo's headers (Debian: libgloo-dev)")
if(DITTO_GLOO_INCLUDE AND NOT TARGET ditto::gloo)
  add_library(ditto::gloo INTERFACE IMPORTED)
  if(NOT DITTO_GLOO_INCLUDE STREQUAL "/usr/include")
    target_include_directories(ditto::gloo SYSTEM INTERFACE "${DITTO_GLOO_INCLUDE}")
  endif()
endif()
