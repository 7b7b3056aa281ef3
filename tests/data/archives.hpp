// SPDX-License-Identifier: Apache-2.0
// Arrays, archives and pictures that tests make for themselves.
#pragma once

#include <zip.h>

#include <cstdlib>
#include <examples/data/jpeg.hpp>
#include <map>

#include "temporary.hpp"

namespace test_data {

/// A .npy of version 1 with this header's dictionary and these bytes.
inline std::string npy(const std::string& type, const std::string& shape, std::string_view contents,
                       const std::string& order = "False") {
  std::string header = "{'descr': '" + type + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }";
  header.resize(118, ' ');
  header.back() = '\n';
  std::string file = "\x93NUMPY";
  file += '\1';
  file += '\0';
  file += static_cast<char>(header.size());
  file += '\0';
  return file + header + std::string{contents};
}

/// One axis of numbers, as NumPy saves them.
template <class T>
std::string npy(const std::string& type, std::initializer_list<T> values) {
  const std::vector<T> all{values};
  return npy(type, "(" + std::to_string(all.size()) + ",)",
             {reinterpret_cast<const char*>(all.data()), all.size() * sizeof(T)});
}

inline std::string zipped(const std::map<std::string, std::string>& entries, bool packed = true) {
  zip_error_t why;
  zip_error_init(&why);
  zip_source_t* target = zip_source_buffer_create(nullptr, 0, 0, &why);
  zip_t* archive = zip_open_from_source(target, ZIP_CREATE | ZIP_TRUNCATE, &why);
  REQUIRE(archive != nullptr);
  zip_source_keep(target);
  for (const auto& [name, contents] : entries) {
    const auto at =
        zip_file_add(archive, name.c_str(), zip_source_buffer(archive, contents.data(), contents.size(), 0), 0);
    REQUIRE(at >= 0);
    zip_set_file_compression(archive, static_cast<zip_uint64_t>(at), packed ? ZIP_CM_DEFLATE : ZIP_CM_STORE, 0);
  }
  REQUIRE(zip_close(archive) == 0);
  REQUIRE(zip_source_open(target) == 0);
  std::string file(1U << 20, '\0');
  const auto length = zip_source_read(target, file.data(), file.size());
  REQUIRE(length > 0);
  file.resize(static_cast<std::size_t>(length));
  zip_source_close(target);
  zip_source_free(target);
  return file;
}

/// A picture of one colour. `channels` 1: grey, 3: red, green, blue, 4: inks.
inline std::string jpeg(unsigned width, unsigned height, const std::vector<unsigned char>& colour, bool adobe = false) {
  jpeg_compress_struct info = {};
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* buffer = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &buffer, &size);
  info.image_width = width;
  info.image_height = height;
  info.input_components = static_cast<int>(colour.size());
  info.in_color_space = colour.size() == 1 ? JCS_GRAYSCALE : colour.size() == 3 ? JCS_RGB : JCS_CMYK;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 100, TRUE);
  info.write_Adobe_marker = adobe ? TRUE : FALSE;
  jpeg_start_compress(&info, TRUE);
  std::vector<unsigned char> row;
  for (unsigned x = 0; x < width; ++x) row.insert(row.end(), colour.begin(), colour.end());
  while (info.next_scanline < height) {
    JSAMPROW rows = row.data();
    jpeg_write_scanlines(&info, &rows, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::string text{reinterpret_cast<char*>(buffer), size};
  std::free(buffer);
  return text;
}

}  // namespace test_data
