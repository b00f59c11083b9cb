#include "core/formats/elf_stamp.h"

#include <ditto/error.h>
#include <elf.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "core/formats/file.h"
#include "core/formats/limits.h"

namespace ditto::formats {

namespace {

static_assert(std::endian::native == std::endian::little, "the structures of elf.h are read as they lie in the file");
#if defined(__x86_64__)
constexpr Elf64_Half kThisMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr Elf64_Half kThisMachine = EM_AARCH64;
#else
#error "name this machine's ELF number here"
#endif
constexpr const char* kCutOff = "the file was cut off or damaged; copy or build it again";

std::string machine_name(Elf64_Half machine) {
  if (machine == EM_X86_64) return "x86-64";
  if (machine == EM_AARCH64) return "aarch64";
  return "machine " + std::to_string(machine);
}

// A file whose every part is fetched with its bounds checked.
class Elf {
 public:
  explicit Elf(const RandomFile& file) : file_(file) {
    check_ident();
    header_ = at<Elf64_Ehdr>(0, "its header");
    check_header();
    read_sections();
    check_segments();
  }

  std::string section(std::string_view wanted) const {
    std::optional<std::string> found;
    for (const Elf64_Shdr& section : sections_) {
      if (name_of(section) != wanted) continue;
      if (found) fail("it has two sections " + std::string(wanted), "build the plugin again");
      found = contents(section, wanted);
    }
    if (!found)
      fail("it has no section " + std::string(wanted) + ", so it is no Ditto plugin",
           "a plugin's source ends with the SDK's macro that registers it");
    return *found;
  }

 private:
  [[noreturn]] void fail(const std::string& what, std::string_view remedy = {}) const {
    throw Error(ErrorKind::plugin, file_.path(), what, remedy);
  }

  void require(std::uint64_t offset, std::uint64_t bytes, const char* what) const {
    if (offset > file_.size() || bytes > file_.size() - offset)
      fail(std::string(what) + " should lie at byte " + std::to_string(offset) + " with " + std::to_string(bytes) +
               " bytes, and the file has " + std::to_string(file_.size()),
           kCutOff);
  }

  std::string part(std::uint64_t offset, std::uint64_t bytes, const char* what) const {
    require(offset, bytes, what);
    std::string text(bytes, '\0');
    file_.read(offset, std::as_writable_bytes(std::span(text)));
    return text;
  }

  template <class T>
  T at(std::uint64_t offset, const char* what) const {
    T value;
    std::memcpy(&value, part(offset, sizeof value, what).data(), sizeof value);  // may lie unaligned
    return value;
  }

  void check_ident() const {
    if (file_.size() == 0) fail("the file is empty", "copy or build it again");
    if (file_.size() < SELFMAG || part(0, SELFMAG, "its first bytes") != std::string_view(ELFMAG, SELFMAG))
      fail("this is not an ELF file", "a plugin is a shared library (.so)");
    const std::string ident = part(0, EI_NIDENT, "its identification");
    if (ident[EI_CLASS] != ELFCLASS64 || ident[EI_DATA] != ELFDATA2LSB)
      fail("this ELF file is not 64-bit little-endian", "build the plugin for this machine");
  }

  void check_header() const {
    if (header_.e_machine != kThisMachine)
      fail("it was built for " + machine_name(header_.e_machine) + ", and this is " + machine_name(kThisMachine),
           "build the plugin for this machine");
    if (header_.e_type != ET_DYN) fail("this ELF file is no shared library", "link the plugin with -shared");
    if (header_.e_shoff == 0 || header_.e_shnum == 0)
      fail("it has no table of sections", "do not remove it (sstrip) from a plugin");
    if (header_.e_shentsize != sizeof(Elf64_Shdr)) fail("its table of sections has entries of a wrong size", kCutOff);
  }

  void read_sections() {
    require(header_.e_shoff, std::uint64_t{header_.e_shnum} * sizeof(Elf64_Shdr), "its table of sections");
    for (std::uint64_t i = 0; i < header_.e_shnum; ++i)
      sections_.push_back(at<Elf64_Shdr>(header_.e_shoff + i * sizeof(Elf64_Shdr), "a section's header"));
    if (header_.e_shstrndx >= sections_.size()) fail("its table of section names is missing", kCutOff);
    const Elf64_Shdr& names = sections_[header_.e_shstrndx];
    if (names.sh_type != SHT_STRTAB) fail("its table of section names is none", kCutOff);
    names_ = part(names.sh_offset, names.sh_size, "its table of section names");
  }

  // What dlopen would map must be in the file: a hole in it would kill the process, not raise an error.
  void check_segments() const {
    if (header_.e_phnum == 0) fail("it has nothing to load", kCutOff);
    if (header_.e_phentsize != sizeof(Elf64_Phdr)) fail("its table of segments has entries of a wrong size", kCutOff);
    require(header_.e_phoff, std::uint64_t{header_.e_phnum} * sizeof(Elf64_Phdr), "its table of segments");
    for (std::uint64_t i = 0; i < header_.e_phnum; ++i) {
      const auto segment = at<Elf64_Phdr>(header_.e_phoff + i * sizeof(Elf64_Phdr), "a segment's header");
      if (segment.p_type == PT_LOAD) require(segment.p_offset, segment.p_filesz, "a segment");
    }
  }

  std::string_view name_of(const Elf64_Shdr& section) const {
    if (section.sh_name >= names_.size()) return {};
    const std::string_view rest = std::string_view(names_).substr(section.sh_name);
    const auto end = rest.find('\0');
    return end == std::string_view::npos ? std::string_view{} : rest.substr(0, end);
  }

  std::string contents(const Elf64_Shdr& section, std::string_view name) const {
    if (section.sh_type == SHT_NOBITS || section.sh_size == 0)
      fail("its section " + std::string(name) + " is empty", "build the plugin again");
    if (section.sh_flags & SHF_COMPRESSED)
      fail("its section " + std::string(name) + " is compressed", "link without compressing sections");
    if (section.sh_size > limits::kSectionBytes)
      fail("its section " + std::string(name) + " has " + std::to_string(section.sh_size) + " bytes, over 1 MiB",
           kCutOff);
    return part(section.sh_offset, section.sh_size, "the stamp's section");
  }

  const RandomFile& file_;
  Elf64_Ehdr header_{};
  std::vector<Elf64_Shdr> sections_;
  std::string names_;
};

}  // namespace

std::string elf_section(std::string_view file, std::string_view where, std::string_view section) {
  return Elf(*RandomFile::over(std::as_bytes(std::span(file)), where, ErrorKind::plugin)).section(section);
}

std::string read_elf_section(const std::string& path, std::string_view section) {
  return Elf(*RandomFile::open(path, ErrorKind::plugin)).section(section);
}

}  // namespace ditto::formats
