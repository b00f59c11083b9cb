# The SDK, the host and the program. Who sees whom is decided by include directories: plugins -> sdk <- core <- apps.

# LibTorch's headers take 20 s a file; once here, 3 s. (All of torch/torch.h, with its layers, optimizers, loaders and JIT, would
# be 5 s: sources include what they use of it.) The host and the tests spend their time in libraries: at -O1 they compile in
# two thirds of the time that -O2 takes and run as fast, so they have a precompiled header of their own.
foreach(pch ditto_pch ditto_host_pch)
  add_library(${pch} OBJECT cmake/pch.cpp)
  target_link_libraries(${pch} PRIVATE ditto::torch)
  ditto_compile_settings(${pch})
  target_precompile_headers(${pch} PRIVATE <torch/autograd.h> <torch/nn/module.h> <torch/types.h> <algorithm> <array> <chrono>
    <cmath> <cstdint> <filesystem> <functional> <map> <memory> <optional> <span> <string> <string_view> <unordered_map>
    <utility> <variant> <vector>)
endforeach()
target_compile_options(ditto_host_pch PRIVATE $<$<CONFIG:Release>:-O1>)

function(ditto_use_pch target)
  target_precompile_headers(${target} REUSE_FROM ditto_pch)
endfunction()
function(ditto_use_host_pch target)
  target_precompile_headers(${target} REUSE_FROM ditto_host_pch)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

file(GLOB_RECURSE sdk_sources CONFIGURE_DEPENDS sdk/src/*.cpp)
list(SORT sdk_sources COMPARE FILE_BASENAME)  # which fit together is known by names, in whatever room they lie
list(FILTER sdk_sources EXCLUDE REGEX "/(error|nearest|text)\\.cpp$")
add_library(ditto_sdk SHARED ${sdk_sources} $<TARGET_OBJECTS:ditto_error>)
add_library(Ditto::sdk ALIAS ditto_sdk)
target_link_libraries(ditto_sdk PUBLIC ditto_headers ditto::torch)
target_include_directories(ditto_sdk PRIVATE "${PROJECT_SOURCE_DIR}/sdk/src")
ditto_compile_settings(ditto_sdk)
ditto_use_pch(ditto_sdk)
ditto_compile_together(ditto_sdk APART "meta_ops pack")
target_link_options(ditto_sdk PRIVATE -Wl,--no-undefined)
set_target_properties(ditto_sdk PROPERTIES EXPORT_NAME sdk INSTALL_RPATH "$ORIGIN:$ORIGIN/torch/lib")

# The contract tests as a library; it is installed, so that authors run them on their own plugins.
file(GLOB_RECURSE testing_sources CONFIGURE_DEPENDS sdk/testing/*.cpp)
list(SORT testing_sources COMPARE FILE_BASENAME)
if(testing_sources)
  add_library(ditto_testing STATIC ${testing_sources})
  add_library(Ditto::testing ALIAS ditto_testing)
  target_include_directories(ditto_testing PUBLIC "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/sdk/testing/include>"
                             PRIVATE "${PROJECT_SOURCE_DIR}/sdk/testing")
  target_link_libraries(ditto_testing PUBLIC ditto_sdk)
  # Its ranks talk over Gloo, whose headers no user of the library needs.
  target_include_directories(ditto_testing SYSTEM PRIVATE
    "$<BUILD_INTERFACE:$<TARGET_PROPERTY:ditto::gloo,INTERFACE_INCLUDE_DIRECTORIES>>")
  ditto_compile_settings(ditto_testing)
  ditto_use_pch(ditto_testing)
  ditto_compile_together(ditto_testing APART "guidance parallel written_number" "objective token_probes"
                         "parallel_model unit_checks" "encoder encoder_run exact_rows try_encoder" model
                         try_model)
  set_target_properties(ditto_testing PROPERTIES EXPORT_NAME testing)
endif()

find_package(Boost 1.74 REQUIRED)
find_package(OpenSSL 3 REQUIRED COMPONENTS Crypto)
find_package(SQLite3 REQUIRED)
file(GLOB core_sources CONFIGURE_DEPENDS core/*/*.cpp)
list(FILTER core_sources EXCLUDE REGEX "/core/formats/")
if(core_sources)
  add_library(ditto_core STATIC ${core_sources})
  target_include_directories(ditto_core PUBLIC "${PROJECT_SOURCE_DIR}")
  target_compile_definitions(ditto_core PUBLIC BOOST_DLL_USE_STD_FS)  # else Boost.DLL needs two Boost libraries
  target_link_libraries(ditto_core PUBLIC ditto_sdk $<TARGET_NAME_IF_EXISTS:ditto_formats>
                                          $<TARGET_NAME_IF_EXISTS:ditto_tensorboard> ditto::gloo Boost::headers ${CMAKE_DL_LIBS}
                                   PRIVATE OpenSSL::Crypto SQLite::SQLite3)
  if(CUDAToolkit_FOUND)  # for NVTX's header alone, which needs no library
    target_include_directories(ditto_core SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  endif()
  ditto_compile_settings(ditto_core)
  ditto_use_host_pch(ditto_core)
  ditto_compile_together(ditto_core)
  # What receipts cost a step, and sums between ranks: the loops of the host that have to be fast.
  set_source_files_properties(core/mesh/shared_memory.cpp PROPERTIES COMPILE_OPTIONS "-O2" SKIP_PRECOMPILE_HEADERS ON
                              SKIP_UNITY_BUILD_INCLUSION ON)
  # (GCC 12 takes its own AVX-512 header's undefined vectors for a mistake.)
  set_source_files_properties(core/receipts/word_sum.cpp PROPERTIES COMPILE_OPTIONS "-O3;-Wno-maybe-uninitialized"
                              SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
endif()

file(GLOB app_sources CONFIGURE_DEPENDS apps/ditto/*.cpp)
if(app_sources AND core_sources)
  add_executable(ditto ${app_sources})
  target_link_libraries(ditto PRIVATE ditto_core ditto_testing)  # for `ditto plugins try`
  # What `ditto plugins new` writes under another name.
  set(new_model "${PROJECT_SOURCE_DIR}/sdk/template/tiny.cpp")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${new_model}")
  file(READ "${new_model}" new_model)
  file(CONFIGURE OUTPUT generated/new_model.h CONTENT "constexpr const char* kNewModel = R\"source(@new_model@)source\";\n" @ONLY)
  target_include_directories(ditto PRIVATE "${CMAKE_CURRENT_BINARY_DIR}/generated")
  ditto_compile_settings(ditto)
  ditto_use_host_pch(ditto)
  ditto_compile_together(ditto)
endif()
