# Highway: vector instructions chosen at run time.
find_library(DITTO_HWY hwy REQUIRED)
set(plugin_libraries ${DITTO_HWY})
