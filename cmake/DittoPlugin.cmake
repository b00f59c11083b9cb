# ditto_add_plugin(NAME KIND [SOURCES file…] [LIBRARIES library…]): one plugin, one shared library.
# Used for every folder of plugins/ and, after find_package(Ditto), by plugins outside the tree.
# KIND is the folder's name in plugins/; the library is lib/ditto/plugins/KIND/libNAME.so in the build folder. It has no soname: who
# asks the loader for libcuda.so, the driver, is not to be given a plugin of that name.

# What everything built with the SDK shares. -ffp-contract=off: fused multiply-adds would make results depend on the
# machine that compiled. -fPIC for programs too, so that one precompiled header serves all. The three -Wno- are warnings that
# gcc 12 gives for correct uses of std::string and of designated initializers.
function(ditto_compile_settings target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-fPIC;-ffp-contract=off;-Wall;-Wextra;-Wnon-virtual-dtor;-Werror=return-type;-Werror=switch;
      -Wno-restrict;-Wno-stringop-overflow;-Wno-missing-field-initializers>
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-fPIC,-ffp-contract=off>)
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON DEFINE_SYMBOL "")
endfunction()

function(ditto_add_plugin name kind)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "SOURCES;LIBRARIES")
  if(NOT arg_SOURCES)
    message(FATAL_ERROR "ditto_add_plugin(${name} ${kind}): no SOURCES; name at least one .cpp")
  endif()
  set(target ditto_${kind}_${name})
  add_library(${target} SHARED ${arg_SOURCES})
  ditto_compile_settings(${target})
  target_link_libraries(${target} PRIVATE Ditto::sdk ${arg_LIBRARIES} -Wl,--no-undefined)
  set_target_properties(${target} PROPERTIES
    OUTPUT_NAME ${name} NO_SONAME ON LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib/ditto/plugins/${kind}"
    INSTALL_RPATH "$ORIGIN/../../..:$ORIGIN/../../../torch/lib")
endfunction()
