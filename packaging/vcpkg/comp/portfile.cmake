# SPDX-License-Identifier: Apache-2.0
# An overlay port of the sources that it lies in:  vcpkg install comp[host] --overlay-ports=packaging/vcpkg
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
file(READ "${SOURCE_PATH}/meson.build" project)
string(REGEX MATCH "version: '([0-9.]+)'" project "${project}")
set(VERSION "${CMAKE_MATCH_1}")
file(INSTALL "${SOURCE_PATH}/include/comp" DESTINATION "${CURRENT_PACKAGES_DIR}/include")
foreach(part native host libtorch)
  file(INSTALL "${SOURCE_PATH}/backends/${part}/include/comp_${part}" DESTINATION "${CURRENT_PACKAGES_DIR}/include")
endforeach()
file(INSTALL "${SOURCE_PATH}/packaging/cmake/comp-config.cmake" DESTINATION "${CURRENT_PACKAGES_DIR}/share/comp/cmake")
configure_file("${SOURCE_PATH}/packaging/cmake/comp-config-version.cmake.in"
               "${CURRENT_PACKAGES_DIR}/share/comp/cmake/comp-config-version.cmake" @ONLY)
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
