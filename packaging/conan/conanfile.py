# SPDX-License-Identifier: Apache-2.0
# comp's core, headers alone:  conan create packaging/conan --build=missing
# Not here: the backends. ConanCenter has neither oneDNN nor LibTorch as they are wanted; their headers are in the sources.
import pathlib
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.files import copy


class Comp(ConanFile):
    name = 'comp'
    description = 'Finds the per-operator precision plan that trains fastest and still converges'
    license = 'Apache-2.0'
    topics = ('deep-learning', 'mixed-precision', 'header-only')
    package_type = 'header-library'
    settings = 'os', 'arch', 'compiler', 'build_type'
    implements = ['auto_header_only']
    no_copy_source = True

    def _root(self):
        return pathlib.Path(self.recipe_folder, '..', '..').resolve()

    def set_version(self):
        self.version = re.search(r'comp_version = "(.*)";', (self._root() / 'include/comp/files/plan_file.hpp').read_text())[1]

    def export_sources(self):
        for pattern in ('LICENSE', 'include/*'):
            copy(self, pattern, self._root(), self.export_sources_folder)

    def requirements(self):
        self.requires('fmt/[>=8.1 <13]')
        self.requires('nlohmann_json/[>=3.10 <4]')
        self.requires('boost/[>=1.74 <2]', options={'header_only': True})

    def validate(self):
        check_min_cppstd(self, 20)

    def package(self):
        copy(self, 'LICENSE', self.source_folder, pathlib.Path(self.package_folder, 'licenses'))
        for headers in ('*.hpp', '*.inc'):
            copy(self, headers, pathlib.Path(self.source_folder, 'include'), pathlib.Path(self.package_folder, 'include'))

    def package_info(self):
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = []
        self.cpp_info.requires = ['fmt::fmt', 'nlohmann_json::nlohmann_json', 'boost::headers']
        self.cpp_info.set_property('cmake_target_name', 'comp::comp')
