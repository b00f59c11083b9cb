#include "core/plugin/stamp.h"

#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstring>
#include <filesystem>

#include <c10/util/Exception.h>

#include <ditto/text.h>

#include "core/formats/elf_stamp.h"
#include "core/plugin/kinds.h"

namespace ditto {

namespace {

constexpr const char* kBuildAgain = "build the plugin again";
constexpr size_t kFirstFields = offsetof(Stamp, torch);  // magic, size, abi: in the stamp of every SDK

// libcudart's number, as the library beside libc10.so asks for it: "13". LibTorch's headers do not tell.
std::string cuda_of_libtorch() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&c10::GetExceptionString), &info) == 0 || !info.dli_fname) return {};
  const auto library = std::filesystem::path(info.dli_fname).parent_path() / "libc10_cuda.so";
  if (!std::filesystem::exists(library)) return {};
  const std::string names = formats::read_elf_section(library, ".dynstr");
  constexpr std::string_view kRuntime = "libcudart.so.";
  const auto at = names.find(kRuntime);
  if (at == std::string::npos) return {};
  const char* version = names.c_str() + at + kRuntime.size();
  return std::string(version, std::find_if_not(version, version + 4, [](unsigned char c) { return std::isdigit(c); }));
}

std::string major_minor(std::string_view version) {
  const auto first = version.find('.');
  if (first == std::string_view::npos) return std::string(version);
  return std::string(version.substr(0, version.find('.', first + 1)));
}

std::string major(std::string_view version) { return std::string(version.substr(0, version.find('.'))); }

std::string build_name(std::uint32_t mode) {
  std::string name = mode & kBuildDebug ? "a debug build" : "a release build";
  if (mode & kBuildAddressSanitizer) name += " with AddressSanitizer";
  if (mode & kBuildThreadSanitizer) name += " with ThreadSanitizer";
  return name;
}

std::string build_flags(std::uint32_t mode) {
  std::string flags = mode & kBuildDebug ? "-DCMAKE_BUILD_TYPE=Debug" : "-DCMAKE_BUILD_TYPE=Release";
  if (mode & kBuildAddressSanitizer) flags += " -DCMAKE_CXX_FLAGS=-fsanitize=address";
  if (mode & kBuildThreadSanitizer) flags += " -DCMAKE_CXX_FLAGS=-fsanitize=thread";
  return flags;
}

// The text of a field ends inside it, and what follows the end is NUL.
template <size_t N>
bool ends_inside(const std::array<char, N>& field) {
  const std::string_view value = text(field);
  return value.size() < N && std::all_of(field.begin() + value.size(), field.end(), [](char c) { return c == 0; });
}

template <size_t N>
bool is_ascii(const std::array<char, N>& field) {
  const std::string_view value = text(field);
  return ends_inside(field) &&
         std::all_of(value.begin(), value.end(), [](unsigned char c) { return c >= 0x20 && c < 0x7f; });
}

template <size_t N>
bool is_line(const std::array<char, N>& field) {
  const std::string_view value = text(field);
  return ends_inside(field) && shown(value) == value;
}

bool is_name(std::string_view value) {
  return !value.empty() && std::all_of(value.begin(), value.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-' || c == '.';
  });
}

std::string damage(const Stamp& stamp) {
  if (!is_ascii(stamp.torch)) return "LibTorch's version";
  if (!is_ascii(stamp.cuda)) return "CUDA's version";
  if (!is_ascii(stamp.kind) || !is_name(text(stamp.kind))) return "the kind";
  if (!is_ascii(stamp.id) || !is_name(text(stamp.id))) return "the id";
  if (!is_ascii(stamp.version)) return "the version";
  if (!is_ascii(stamp.licence)) return "the licence";
  if (!is_line(stamp.summary)) return "the summary";
  return {};
}

std::string differ(const std::string& plugin, const std::string& host, const std::string& remedy) {
  return "it was built " + plugin + ", and this ditto " + host + "; " + remedy;
}

}  // namespace

const Stamp& host_stamp() {
  static const Stamp stamp = make_stamp("", 0, "", kVersion, "", "", cuda_of_libtorch());
  return stamp;
}

Stamp read_stamp(const std::string& path) {
  const std::string bytes = formats::read_elf_section(path);
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorKind::plugin, path, "its stamp is damaged: " + what, kBuildAgain);
  };
  if (bytes.size() < kFirstFields)
    fail("it has " + std::to_string(bytes.size()) + " bytes, at least " + std::to_string(kFirstFields) +
         " were expected");
  Stamp stamp{};
  std::memcpy(&stamp, bytes.data(), std::min(bytes.size(), sizeof stamp));
  if (std::string_view(stamp.magic.data(), 8) != "DITTOPLG") fail("it does not begin with \"DITTOPLG\"");
  if (stamp.size != bytes.size())
    fail("it should have " + std::to_string(stamp.size) + " bytes and has " + std::to_string(bytes.size()));
  const std::string field = bytes.size() < sizeof stamp ? std::string{} : damage(stamp);
  if (!field.empty()) fail(field + " is not a text as it should be");
  return stamp;
}

std::string misfit(const Stamp& plugin, const Stamp& host) {
  if (plugin.size < host.size) return "its stamp lacks fields that this ditto needs; build the plugin again";
  const std::string kind(text(plugin.kind));
  if (!is_kind(kind))
    return "it is of kind '" + kind + "', which this ditto does not know (" + kind_list() + "); use a newer Ditto";
  if (plugin.abi != abi_of(kind))
    return differ("for ABI " + std::to_string(plugin.abi) + " of kind '" + kind + "'",
                  "has " + std::to_string(abi_of(kind)),
                  "build the plugin against this Ditto (" + std::string(kVersion) + ")");
  if (major_minor(text(plugin.torch)) != major_minor(text(host.torch)))
    return differ("with LibTorch " + std::string(text(plugin.torch)), "uses " + std::string(text(host.torch)),
                  "build the plugin with LibTorch " + major_minor(text(host.torch)));
  if (plugin.cxx11_abi != host.cxx11_abi)
    return differ("with _GLIBCXX_USE_CXX11_ABI=" + std::to_string(plugin.cxx11_abi),
                  "with " + std::to_string(host.cxx11_abi),
                  "let find_package(Ditto) set it, and build the plugin again");
  if (plugin.compiler_abi != host.compiler_abi)
    return differ("with compiler ABI " + std::to_string(plugin.compiler_abi),
                  "with " + std::to_string(host.compiler_abi), "build both with one compiler (-fabi-version)");
  if (plugin.build_mode != host.build_mode)
    return "it is " + build_name(plugin.build_mode) + ", and this ditto is " + build_name(host.build_mode) +
           "; configure the plugin with " + build_flags(host.build_mode);
  if (const auto cuda = major(text(plugin.cuda)); !cuda.empty() && cuda != major(text(host.cuda)))
    return differ("for CUDA " + std::string(text(plugin.cuda)),
                  text(host.cuda).empty() ? "has a LibTorch without CUDA" : "uses CUDA " + std::string(text(host.cuda)),
                  text(host.cuda).empty() ? "install a LibTorch with CUDA " + cuda
                                          : "build the plugin with CUDA " + std::string(text(host.cuda)));
  return {};
}

}  // namespace ditto
