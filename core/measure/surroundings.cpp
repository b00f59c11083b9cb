#include "core/measure/surroundings.h"

#include <elf.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string_view>
#include <vector>

#include <fmt/ranges.h>

#include <ditto/text.h>

extern char** environ;

namespace ditto::report {

namespace {

// A name's beginning is enough. Threads have a note of their own.
constexpr std::array kChoosing{"ATEN_",          "BLIS_",      "CUBLAS",           "CUDNN_",      "DNNL_",
                               "GLIBC_TUNABLES", "KMP_",       "LD_AUDIT",         "LD_PRELOAD",  "MKL_",
                               "NCCL_ALGO",      "NCCL_PROTO", "NVIDIA_TF",        "OMP_DYNAMIC", "OMP_THREAD_LIMIT",
                               "ONEDNN_",        "OPENBLAS_",  "TORCH_ALLOW_TF32", "TORCH_BLAS_", "TORCH_CUDNN_",
                               "TORCH_LINALG_"};
constexpr std::array kSaying{"VERBOSE", "JIT_DUMP", "JIT_PROFILE", "LOG"};  // what they say changes no number

constexpr std::array kComputing{"libm",        "libmvec",     "libgomp", "libiomp5",  "libomp",        "libmkl",
                                "libdnnl",     "libopenblas", "libblas", "liblapack", "libtorch_cuda", "libcublas",
                                "libcublasLt", "libcudnn",    "libnccl", "libc10"};
constexpr std::array kDecoding{"libjpeg", "libturbojpeg", "libwebp",    "libavif",   "libdav1d",
                               "libaom",  "liblcms2",     "libavcodec", "libswscale"};

// "libm" of "/lib/libm.so.6", "libmkl_core" of "libmkl_core.so.2".
std::string name_of(const std::string& path) {
  const auto file = std::filesystem::path(path).filename().string();
  return file.substr(0, file.find(".so"));
}

bool is_computing(const std::string& name) {
  return name.starts_with("libmkl_") || name.starts_with("libcudnn") ||
         std::find(kComputing.begin(), kComputing.end(), name) != kComputing.end();
}

std::string build_id(const dl_phdr_info& library) {
  for (int i = 0; i < library.dlpi_phnum; ++i) {
    const auto& part = library.dlpi_phdr[i];
    if (part.p_type != PT_NOTE) continue;
    const auto* at = reinterpret_cast<const char*>(library.dlpi_addr + part.p_vaddr);
    const size_t align = part.p_align == 8 ? 8 : 4;
    const auto whole = [&](size_t size) { return (size + align - 1) / align * align; };
    for (const char* end = at + part.p_memsz; at + sizeof(ElfW(Nhdr)) <= end;) {
      ElfW(Nhdr) note;
      std::memcpy(&note, at, sizeof note);
      const char* name = at + sizeof note;
      const char* id = name + whole(note.n_namesz);
      if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0) {
        std::string text;
        for (size_t byte = 0; byte < std::min<size_t>(note.n_descsz, 8); ++byte)
          text += fmt::format("{:02x}", static_cast<unsigned char>(id[byte]));
        return text;
      }
      at = id + whole(note.n_descsz);
    }
  }
  return {};
}

std::string build_of(const dl_phdr_info& library) {
  if (auto id = build_id(library); !id.empty()) return id;
  std::error_code ignored;
  const auto size = std::filesystem::file_size(library.dlpi_name, ignored);
  return ignored ? "unknown" : fmt::format("of {} bytes", size);
}

using Look = std::function<void(const dl_phdr_info&)>;

void for_each_library(const Look& look) {
  dl_iterate_phdr(
      [](dl_phdr_info* library, size_t, void* with) {
        if (library->dlpi_name && *library->dlpi_name) (*static_cast<const Look*>(with))(*library);
        return 0;
      },
      const_cast<Look*>(&look));
}

}  // namespace

std::string arithmetic_variables() {
  std::vector<std::string> found;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text(*entry);
    const auto name = text.substr(0, text.find('='));
    const auto begins = [&](std::string_view word) { return name.starts_with(word); };
    const auto has = [&](std::string_view word) { return name.find(word) != name.npos; };
    if (std::any_of(kChoosing.begin(), kChoosing.end(), begins) && std::none_of(kSaying.begin(), kSaying.end(), has))
      found.push_back(shown(text, kSentenceShown));
  }
  if (found.empty()) return "none";
  std::sort(found.begin(), found.end());
  return fmt::format("{}", fmt::join(found, ", "));
}

std::map<std::string, std::string> arithmetic_libraries() {
  std::map<std::string, std::string> found;
  for_each_library([&](const dl_phdr_info& library) {
    const auto name = name_of(library.dlpi_name);
    if (is_computing(name) || decodes_pictures(name)) found.emplace(name, build_of(library));
  });
  return found;
}

bool decodes_pictures(const std::string& library) {
  return std::find(kDecoding.begin(), kDecoding.end(), library) != kDecoding.end();
}

std::string build_of_library(const std::string& path) {
  std::string found = "unknown";
  for_each_library([&](const dl_phdr_info& library) {
    if (std::filesystem::path(library.dlpi_name).filename() == std::filesystem::path(path).filename())
      found = build_of(library);
  });
  return found;
}

}  // namespace ditto::report
