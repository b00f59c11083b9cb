// The stamp of a plugin's file, and whether it fits this program. Nothing of the file is run.
#pragma once

#include <ditto/plugin.h>

#include <string>
#include <string_view>

namespace ditto {

// What this program was built with, but for the ABI, which each kind has its own of (kinds.h). `cuda` is the major
// version of the CUDA that LibTorch brings ("13"); empty without.
const Stamp& host_stamp();

// Reads the stamp of the library at `path`. A stamp of an older or newer SDK is read as far as both know its fields.
// Throws Error(plugin), naming the path, if the file is no whole ELF library, has no stamp, or a damaged one.
Stamp read_stamp(const std::string& path);

// Why `plugin` cannot be used by `host`: one sentence that names both sides and the remedy. Empty: it fits.
std::string misfit(const Stamp& plugin, const Stamp& host);

// A fixed-size text of a stamp, without its padding.
template <size_t N>
std::string_view text(const std::array<char, N>& field) {
  const std::string_view all(field.data(), N);
  return all.substr(0, all.find('\0'));
}

}  // namespace ditto
