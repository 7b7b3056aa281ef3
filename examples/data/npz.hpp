// SPDX-License-Identifier: Apache-2.0
// NumPy's .npz: a zip archive of .npy arrays. It is read by libzip, up to a limit of unpacked bytes.
#pragma once

#include <zip.h>

#include <examples/data/file_bytes.hpp>
#include <examples/data/npy.hpp>
#include <map>
#include <memory>

namespace data_sets {

class npz_arrays {
 public:
  /// Throws: `file_error` for bytes that are not a zip archive, are damaged or encrypted, or unpack to more than
  /// `limit`.
  npz_arrays(std::span<const std::byte> bytes, std::string_view name, std::size_t limit = default_limit) : name_{name} {
    zip_error_t why;
    zip_error_init(&why);
    zip_source_t* source = zip_source_buffer_create(bytes.data(), bytes.size(), 0, &why);
    const std::unique_ptr<zip_t, decltype(&zip_discard)> archive{
        source == nullptr ? nullptr : zip_open_from_source(source, ZIP_RDONLY, &why), &zip_discard};
    if (archive == nullptr) {
      const std::string reason = zip_error_strerror(&why);
      zip_error_fini(&why);
      if (source != nullptr) zip_source_free(source);
      throw file_error{fmt::format("{} is no zip archive ({}): fetch the file again", name_, reason)};
    }
    const zip_int64_t count = zip_get_num_entries(archive.get(), 0);
    require<file_error>(count > 0, "{} is no zip archive (it is empty): fetch the file again", name_);
    for (zip_int64_t i = 0; i < count; ++i) limit -= read(*archive, static_cast<zip_uint64_t>(i), limit);
  }

  /// Throws: `file_error` if there is no such array. Its text names the arrays that are there.
  const npy_array& operator[](std::string_view array) const {
    const auto found = arrays_.find(array);
    if (found != arrays_.end()) return found->second;
    std::string known;
    for (const auto& each : arrays_) known += fmt::format("{}{}", known.empty() ? "" : ", ", each.first);
    throw file_error{fmt::format("{} has no array {} (it has {}): check that it is the right file", name_, array,
                                 known.empty() ? "none" : known)};
  }
  bool contains(std::string_view array) const { return arrays_.find(array) != arrays_.end(); }

 private:
  std::size_t read(zip_t& archive, zip_uint64_t entry, std::size_t limit) {
    zip_stat_t about;
    require<file_error>(zip_stat_index(&archive, entry, 0, &about) == 0 && (about.valid & ZIP_STAT_SIZE) != 0 &&
                            (about.valid & ZIP_STAT_NAME) != 0,
                        "{} has an entry {} without name or size (it is damaged): fetch the file again", name_, entry);
    const std::string inner = fmt::format("{} in {}", printable(about.name, 60), name_);
    require<file_error>(about.size <= limit,
                        "{} unpacks to {} bytes ({} are left of this reader's limit): "
                        "check that it is the right file, or raise the limit",
                        inner, about.size, limit);
    std::vector<std::byte> unpacked(static_cast<std::size_t>(about.size));
    const std::unique_ptr<zip_file_t, decltype(&zip_fclose)> file{zip_fopen_index(&archive, entry, 0), &zip_fclose};
    require<file_error>(file != nullptr, "{} cannot be opened ({}): fetch the file again", inner,
                        zip_strerror(&archive));
    require<file_error>(zip_fread(file.get(), unpacked.data(), about.size) == static_cast<zip_int64_t>(about.size),
                        "{} cannot be unpacked ({}): fetch the file again", inner, zip_file_strerror(file.get()));
    std::byte after;
    require<file_error>(zip_fread(file.get(), &after, 1) == 0, "{} is damaged ({}): fetch the file again", inner,
                        zip_file_strerror(file.get()));
    std::string array = printable(about.name, 60);
    if (array.ends_with(".npy")) array.resize(array.size() - 4);
    arrays_.insert_or_assign(std::move(array), parse_npy(unpacked, inner));
    return unpacked.size();
  }

  std::string name_;
  std::map<std::string, npy_array, std::less<>> arrays_;
};

}  // namespace data_sets
