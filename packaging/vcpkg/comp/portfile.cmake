# SPDX-License-Identifier: Apache-2.0
# An overlay port of the sources that it lies in:  vcpkg install comp[host] --overlay-ports=packaging/vcpkg
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
file(INSTALL "${SOURCE_PATH}/include/comp" DESTINATION "${CURRENT_PACKAGES_DIR}/include")
foreach(part native host libtorch simulated)
  file(INSTALL "${SOURCE_PATH}/backends/${part}/include/comp_${part}" DESTINATION "${CURRENT_PACKAGES_DIR}/include")
endforeach()
file(INSTALL "${SOURCE_PATH}/packaging/cmake/comp-config.cmake" DESTINATION "${CURRENT_PACKAGES_DIR}/share/comp/cmake")
configure_file("${SOURCE_PATH}/packaging/cmake/comp-config-version.cmake.in"
               "${CURRENT_PACKAGES_DIR}/share/comp/cmake/comp-config-version.cmake" @ONLY)
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/comp")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
