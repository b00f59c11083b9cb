# What needs no LibTorch: the SDK's headers that are free of it, the error type, and every parser of foreign bytes.
add_library(ditto_headers INTERFACE)
target_include_directories(ditto_headers INTERFACE "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/sdk/include>"
                                                   "$<INSTALL_INTERFACE:include>")
add_library(ditto_error OBJECT sdk/src/error.cpp sdk/src/nearest.cpp sdk/src/text.cpp)
target_link_libraries(ditto_error PUBLIC ditto_headers)
ditto_compile_settings(ditto_error)

add_subdirectory(core/formats)
