# Highway: vector instructions chosen at run time.
find_library(DITTO_HWY hwy REQUIRED)
set(plugin_libraries ${DITTO_HWY})
# The file includes itself once for each instruction set.
set_source_files_properties(${folder}/norm_modulate.cpp PROPERTIES INCLUDE_DIRECTORIES ${folder})
