# Highway: vector instructions chosen at run time. The file includes itself once for each instruction set. On ARM that is NEON:
# SVE's vectors, whose size is not known, stand in no struct.
find_library(DITTO_HWY hwy REQUIRED)
set(plugin_libraries ${DITTO_HWY})
set_source_files_properties(${folder}/one_pass.cpp PROPERTIES INCLUDE_DIRECTORIES ${folder}
  COMPILE_DEFINITIONS "HWY_DISABLED_TARGETS=(HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)")
