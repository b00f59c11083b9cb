# Settings of the compiler and of the build folder, for this project only (a plugin outside the tree has its own).

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")  # generic x86-64: kernels choose their instructions at run time
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g1")

# The build folder is shaped like the installed prefix, and found by the same relative paths.
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH "$ORIGIN/../lib:$ORIGIN/../lib/torch/lib")
file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
file(CREATE_LINK "${DITTO_LIBTORCH}" "${PROJECT_BINARY_DIR}/lib/torch" SYMBOLIC)

find_program(DITTO_CCACHE ccache)
if(DITTO_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # A precompiled header is only cached when told that its macros and times may be trusted. By the compiler's own list of
  # a source's headers a first build does without a preprocessor's run for each.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_DEPEND=1
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${DITTO_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
endif()

# Each file pays 3 s and more for what LibTorch's headers instantiate at its end; eight that are compiled as one pay it once.
# They share one anonymous namespace: files with names of others in theirs are APART, as lists that go together.
option(DITTO_UNITY "Compile eight sources of a target as one; OFF: each by itself" ON)
function(ditto_compile_together target)  # TARGET [APART "name…"…]
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "APART")
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${DITTO_UNITY} UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  set(count 0)
  foreach(source IN LISTS sources)
    cmake_path(GET source STEM name)
    math(EXPR group "${count} / 8")
    foreach(list IN LISTS arg_APART)
      string(REPLACE " " ";" names "${list}")
      if(name IN_LIST names)
        list(GET names 0 group)
      endif()
    endforeach()
    if(group MATCHES "^[0-9]+$")
      math(EXPR count "${count} + 1")
    endif()
    set_source_files_properties("${source}" PROPERTIES UNITY_GROUP "${group}")
  endforeach()
endfunction()

find_program(DITTO_MOLD mold)
if(DITTO_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

if(DITTO_SANITIZE)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${DITTO_SANITIZE};-fno-omit-frame-pointer>")
  add_link_options(-fsanitize=${DITTO_SANITIZE})
endif()

if(NOT DITTO_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(DITTO_HAS_CUDA ON)
  elseif(DITTO_CUDA STREQUAL "ON")
    message(FATAL_ERROR "DITTO_CUDA = ON, but no nvcc was found; install the CUDA 13.0 toolkit or set CUDACXX")
  endif()
endif()
