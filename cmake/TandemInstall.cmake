# SPDX-License-Identifier: Apache-2.0

# Installs the library, its headers and a relocatable package config for find_package(tandem).
include(CMakePackageConfigHelpers)

set(TANDEM_INSTALL_CMAKEDIR ${CMAKE_INSTALL_LIBDIR}/cmake/tandem)

set_target_properties(tandem_plugin_api PROPERTIES EXPORT_NAME plugin_api)
install(TARGETS tandem tandem_plugin_api EXPORT tandemTargets FILE_SET HEADERS)
install(EXPORT tandemTargets NAMESPACE tandem:: DESTINATION ${TANDEM_INSTALL_CMAKEDIR})

# A static library carries its dependencies to whoever links it.
set(TANDEM_NEEDS_FMT OFF)
set(TANDEM_NEEDS_CUDA OFF)
if(NOT BUILD_SHARED_LIBS)
  set(TANDEM_NEEDS_CUDA ${TANDEM_WITH_CUDA})
  if(NOT TANDEM_FMT_HEADER_ONLY)
    set(TANDEM_NEEDS_FMT ON)
  endif()
endif()
configure_package_config_file(cmake/tandemConfig.cmake.in ${PROJECT_BINARY_DIR}/cmake/tandemConfig.cmake
  INSTALL_DESTINATION ${TANDEM_INSTALL_CMAKEDIR} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cmake/tandemConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES
    ${PROJECT_BINARY_DIR}/cmake/tandemConfig.cmake
    ${PROJECT_BINARY_DIR}/cmake/tandemConfigVersion.cmake
  DESTINATION ${TANDEM_INSTALL_CMAKEDIR})

install(FILES LICENSE CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
