# A prefix that can be moved: everything finds everything by relative paths.
# LibTorch is lib/torch there: a link to DITTO_LIBTORCH, a copy, or (none) a link that the user makes.

set(exported ditto_sdk ditto_headers)
if(TARGET ditto_testing)
  list(APPEND exported ditto_testing)
  install(DIRECTORY sdk/testing/include/ DESTINATION include OPTIONAL)
endif()
if(TARGET ditto)
  install(TARGETS ditto RUNTIME DESTINATION bin)
endif()
install(TARGETS ${exported} EXPORT DittoTargets LIBRARY DESTINATION lib ARCHIVE DESTINATION lib)
# By itself, since it needs the libraries that it reads pictures and archives with: find_package(Ditto COMPONENTS formats).
install(TARGETS ditto_formats EXPORT DittoFormatsTargets ARCHIVE DESTINATION lib PUBLIC_HEADER DESTINATION include/ditto/formats)
install(TARGETS ditto_tokenizers EXPORT DittoTokenizersTargets ARCHIVE DESTINATION lib)
install(EXPORT DittoTokenizersTargets NAMESPACE Ditto:: DESTINATION lib/cmake/Ditto)
install(EXPORT DittoFormatsTargets NAMESPACE Ditto:: DESTINATION lib/cmake/Ditto)
install(EXPORT DittoTargets NAMESPACE Ditto:: DESTINATION lib/cmake/Ditto)
install(DIRECTORY sdk/include/ditto DESTINATION include)
install(DIRECTORY sdk/template/ DESTINATION share/ditto/template OPTIONAL)
# Side by side, as configs/digits.toml looks for its data.
install(DIRECTORY configs/ DESTINATION share/ditto/configs OPTIONAL)
install(DIRECTORY data/digits/ DESTINATION share/ditto/data/digits OPTIONAL)
# As they lie here, so that what links to another page finds it.
install(FILES LICENSE NOTICE README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md DESTINATION share/doc/ditto)
install(DIRECTORY docs/ DESTINATION share/doc/ditto/docs)

include(CMakePackageConfigHelpers)
configure_package_config_file(cmake/DittoConfig.cmake.in "${PROJECT_BINARY_DIR}/cmake/DittoConfig.cmake"
                              INSTALL_DESTINATION lib/cmake/Ditto)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/cmake/DittoConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/cmake/DittoConfig.cmake" "${PROJECT_BINARY_DIR}/cmake/DittoConfigVersion.cmake"
              cmake/LibTorch.cmake cmake/DittoPlugin.cmake DESTINATION lib/cmake/Ditto)

if(DITTO_INSTALL_LIBTORCH STREQUAL "link")
  install(CODE "file(CREATE_LINK \"${DITTO_LIBTORCH}\" \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/lib/torch\" SYMBOLIC)")
elseif(DITTO_INSTALL_LIBTORCH STREQUAL "copy")
  install(DIRECTORY "${DITTO_LIBTORCH}/include" "${DITTO_LIBTORCH}/lib" DESTINATION lib/torch USE_SOURCE_PERMISSIONS)
  # LibTorch looks for CUDA's small run-time libraries in ../../nvidia, as in the folder it was unpacked in.
  install(DIRECTORY "${DITTO_LIBTORCH}/../nvidia" DESTINATION lib USE_SOURCE_PERMISSIONS OPTIONAL)
endif()
