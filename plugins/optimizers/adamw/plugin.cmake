# Highway: vector instructions chosen at run time. The file includes itself once for each instruction set.
find_library(DITTO_HWY hwy REQUIRED)
set(plugin_libraries ${DITTO_HWY})
set_source_files_properties(${folder}/one_pass.cpp PROPERTIES INCLUDE_DIRECTORIES ${folder})
