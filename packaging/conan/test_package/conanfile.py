# SPDX-License-Identifier: Apache-2.0
# Builds and runs the consumer of tests/promises against the package.
from conan import ConanFile
from conan.tools.build import can_run
from conan.tools.cmake import CMake, cmake_layout


class Consumer(ConanFile):
    settings = 'os', 'arch', 'compiler', 'build_type'
    generators = 'CMakeDeps', 'CMakeToolchain'

    def requirements(self):
        self.requires(self.tested_reference_str)

    def layout(self):
        cmake_layout(self)

    def build(self):
        cmake = CMake(self)
        cmake.configure(build_script_folder='../../../tests/promises/consumer')
        cmake.build()

    def test(self):
        if can_run(self):
            self.run(f'{self.cpp.build.bindir}/consumer', env='conanrun')
