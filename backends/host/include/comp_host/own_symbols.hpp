// SPDX-License-Identifier: Apache-2.0
// Lets two copies of oneDNN live in one process: the one that this backend links, and one inside of another library
// (LibTorch has oneDNN 3).
// Both copies hide their functions, but not instances of the standard library's templates over their types. Such a
// symbol has the same name in both, and the loader gives every library the one that was loaded first. std::call_once
// then sets up the tables of the other copy's matrix product, and this backend's copy fails with "unimplemented" when
// it runs. The function here gives that copy its own symbols back. Link LibTorch first, or its copy
// is the one that fails.
// It does nothing if no other library has taken a symbol, and on systems other than Linux on x86-64.
// Source: the loader's rules, System V ABI (gABI 4.1, AMD64 supplement 4.4).
#pragma once

#if defined(__linux__) && defined(__x86_64__) && defined(__LP64__)
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <string_view>

namespace comp::host::detail {

/// A library that is loaded, as its program headers and its dynamic section describe it.
class loaded_library {
  using address = ElfW(Addr);
  using entry = ElfW(Dyn);
  using relocation = ElfW(Rela);
  using symbol = ElfW(Sym);

 public:
  explicit loaded_library(const dl_phdr_info& from) : at_{from.dlpi_addr} {
    for (const ElfW(Phdr)* part = from.dlpi_phdr; part != from.dlpi_phdr + from.dlpi_phnum; ++part) {
      if (part->p_type == PT_GNU_RELRO) {
        read_only_ = at_ + part->p_vaddr;
        read_only_end_ = read_only_ + part->p_memsz;
      }
      if (part->p_type == PT_DYNAMIC) read(reinterpret_cast<const entry*>(at_ + part->p_vaddr));
    }
  }

  /// From here on the library calls its own functions, if it defines them and their name is `wanted`.
  void bind_own(auto wanted) const {
    bind_own(relocations_, relocations_end_, wanted);
    bind_own(calls_, calls_end_, wanted);
  }

 private:
  void read(const entry* one) {
    std::size_t bytes = 0, bytes_of_calls = 0;
    for (; one->d_tag != DT_NULL; ++one) {
      // Some C libraries turn these offsets into addresses when they load the library, others leave them.
      const address to = one->d_un.d_ptr < at_ ? at_ + one->d_un.d_ptr : one->d_un.d_ptr;
      if (one->d_tag == DT_SYMTAB) symbols_ = reinterpret_cast<const symbol*>(to);
      if (one->d_tag == DT_STRTAB) names_ = reinterpret_cast<const char*>(to);
      if (one->d_tag == DT_RELA) relocations_ = reinterpret_cast<const relocation*>(to);
      if (one->d_tag == DT_JMPREL) calls_ = reinterpret_cast<const relocation*>(to);
      if (one->d_tag == DT_RELASZ) bytes = one->d_un.d_val;
      if (one->d_tag == DT_PLTRELSZ) bytes_of_calls = one->d_un.d_val;
    }
    relocations_end_ = relocations_ + bytes / sizeof *relocations_;
    calls_end_ = calls_ + bytes_of_calls / sizeof *calls_;
  }

  void bind_own(const relocation* one, const relocation* end, auto wanted) const {
    for (; one != end; ++one) {
      const auto kind = ELF64_R_TYPE(one->r_info);
      if (kind != R_X86_64_GLOB_DAT && kind != R_X86_64_JUMP_SLOT) continue;
      const symbol& meant = symbols_[ELF64_R_SYM(one->r_info)];
      if (meant.st_shndx == SHN_UNDEF || ELF64_ST_TYPE(meant.st_info) != STT_FUNC) continue;
      if (!wanted(std::string_view{names_ + meant.st_name})) continue;
      auto* const slot = reinterpret_cast<address*>(at_ + one->r_offset);
      if (*slot != at_ + meant.st_value) write(slot, at_ + meant.st_value);
    }
  }
  void write(address* slot, address value) const {
    const auto place = reinterpret_cast<address>(slot);
    const auto size = static_cast<address>(sysconf(_SC_PAGESIZE));
    void* const page = reinterpret_cast<void*>(place / size * size);
    const bool closed = place >= read_only_ && place < read_only_end_;
    if (closed && mprotect(page, size, PROT_READ | PROT_WRITE) != 0) return;
    *slot = value;
    if (closed) mprotect(page, size, PROT_READ);
  }

  address at_, read_only_ = 0, read_only_end_ = 0;
  const symbol* symbols_ = nullptr;
  const char* names_ = nullptr;
  const relocation *relocations_ = nullptr, *relocations_end_ = nullptr, *calls_ = nullptr, *calls_end_ = nullptr;
};

}  // namespace comp::host::detail
#endif

namespace comp::host {

/// Gives oneDNN's library its own functions back. Call it before the first primitive runs.
inline void bind_own_symbols() {
#if defined(__linux__) && defined(__x86_64__) && defined(__LP64__)
  const auto each = [](dl_phdr_info* library, std::size_t, void*) {
    if (std::string_view{library->dlpi_name}.find("libdnnl.so") != std::string_view::npos) {
      detail::loaded_library{*library}.bind_own(
          [](std::string_view name) { return name.find("4dnnl4impl") != std::string_view::npos; });
    }
    return 0;
  };
  [[maybe_unused]] static const int once = dl_iterate_phdr(each, nullptr);
#endif
}

}  // namespace comp::host
