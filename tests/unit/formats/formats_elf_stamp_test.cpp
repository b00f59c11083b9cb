// A plugin's stamp is read out of its file without loading it; everything else is refused in words.
#include "core/formats/elf_stamp.h"

#include <doctest/doctest.h>
#include <elf.h>

#include <algorithm>
#include <cstring>

#include "support/files.h"

using namespace ditto::formats;
using ditto::ErrorKind;
using ditto::test::contains;
using ditto::test::error_of;
using ditto::test::TemporaryFolder;

namespace {

// A shared library with nothing but a loadable segment and the sections "", .shstrtab and .ditto.stamp, twice if asked.
struct Library {
  Elf64_Ehdr header{};
  Elf64_Phdr segment{};
  Elf64_Shdr sections[4]{};
  char names[32] = "\0.shstrtab\0.ditto.stamp";
  char stamp[16] = "STAMP of a test";

  explicit Library(unsigned stamps = 1) {
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_ident[EI_DATA] = ELFDATA2LSB;
    header.e_type = ET_DYN;
#if defined(__aarch64__)
    header.e_machine = EM_AARCH64;
#else
    header.e_machine = EM_X86_64;
#endif
    header.e_phoff = offsetof(Library, segment);
    header.e_phentsize = sizeof(Elf64_Phdr);
    header.e_phnum = 1;
    header.e_shoff = offsetof(Library, sections);
    header.e_shentsize = sizeof(Elf64_Shdr);
    header.e_shnum = static_cast<Elf64_Half>(2 + stamps);
    header.e_shstrndx = 1;
    segment.p_type = PT_LOAD;
    segment.p_filesz = sizeof(Library);
    sections[1].sh_name = 1;
    sections[1].sh_type = SHT_STRTAB;
    sections[1].sh_offset = offsetof(Library, names);
    sections[1].sh_size = sizeof names;
    for (unsigned i = 2; i < 4; ++i) {
      sections[i].sh_name = 11;
      sections[i].sh_type = SHT_PROGBITS;
      sections[i].sh_offset = offsetof(Library, stamp);
      sections[i].sh_size = sizeof stamp;
    }
  }

  std::string file() const { return {reinterpret_cast<const char*>(this), sizeof *this}; }
};

std::string section_refusal(std::string_view file) {
  return error_of(ErrorKind::plugin, [&] { elf_section(file, "libx.so"); });
}

template <class Edit>
std::string section_refusal_after(const Edit& edit) {
  Library library;
  edit(library);
  return section_refusal(library.file());
}

}  // namespace

TEST_CASE("the stamp's bytes come out as they lie in the file") {
  const Library library;
  CHECK(elf_section(library.file(), "libx.so") == std::string(library.stamp, sizeof library.stamp));
  const TemporaryFolder folder;
  ditto::test::write_text(folder / "libx.so", library.file());
  CHECK(read_elf_section(folder / "libx.so") == std::string(library.stamp, sizeof library.stamp));
  CHECK(elf_section(library.file(), "libx.so", ".shstrtab").size() == sizeof library.names);
}

TEST_CASE("a real shared library without a stamp is no plugin") {
  CHECK(contains(error_of(ErrorKind::plugin, [] { read_elf_section("/proc/self/exe", ".none"); }), "no section .none"));
}

TEST_CASE("files that are no plugins are refused") {
  CHECK(contains(section_refusal(""), "libx.so: the file is empty"));
  CHECK(contains(section_refusal("hello"), "not an ELF file"));
  CHECK(contains(section_refusal("\x7f"
                                 "ELF"),
                 "cut off"));
  CHECK(contains(error_of(ErrorKind::plugin, [] { read_elf_section("/nowhere/libx.so"); }), "No such file"));
  CHECK(contains(error_of(ErrorKind::plugin, [] { read_elf_section("/tmp"); }), "not a regular file"));
  CHECK(contains(section_refusal_after([](Library& l) { l.header.e_ident[EI_CLASS] = ELFCLASS32; }), "64-bit"));
  CHECK(contains(section_refusal_after([](Library& l) { l.header.e_ident[EI_DATA] = ELFDATA2MSB; }), "little-endian"));
  CHECK(contains(section_refusal_after([](Library& l) { l.header.e_machine = EM_PPC64; }), "was built for machine 21"));
  CHECK(contains(section_refusal_after([](Library& l) { l.header.e_type = ET_REL; }), "no shared library"));
  CHECK(contains(section_refusal(Library(0).file()), "no section .ditto.stamp, so it is no Ditto plugin"));
  CHECK(contains(section_refusal(Library(2).file()), "two sections"));
}

TEST_CASE("places that lie outside the file are refused") {
  const std::uint64_t edges[] = {sizeof(Library) - 1, sizeof(Library), 1ull << 40, ~0ull - 8, ~0ull};
  for (const std::uint64_t edge : edges) {
    CAPTURE(edge);
    CHECK(section_refusal_after([&](Library& l) { l.header.e_shoff = edge; }) != "");
    CHECK(section_refusal_after([&](Library& l) { l.header.e_phoff = edge; }) != "");
    CHECK(section_refusal_after([&](Library& l) { l.sections[1].sh_offset = edge; }) != "");
    CHECK(section_refusal_after([&](Library& l) { l.sections[1].sh_size = edge; }) != "");
    CHECK(section_refusal_after([&](Library& l) { l.sections[2].sh_offset = edge; }) != "");
    CHECK(section_refusal_after([&](Library& l) { l.sections[2].sh_size = edge; }) != "");
    CHECK(section_refusal_after([&](Library& l) { l.segment.p_offset = edge; }) != "");
    CHECK(section_refusal_after(
              [&](Library& l) { l.segment.p_filesz = std::max<std::uint64_t>(edge, sizeof(Library) + 1); }) != "");
  }
  CHECK(contains(section_refusal_after([](Library& l) { l.header.e_shoff = 0; }), "no table of sections"));
  CHECK(contains(section_refusal_after([](Library& l) { l.header.e_shnum = 0; }), "no table of sections"));
  CHECK(contains(section_refusal_after([](Library& l) { l.header.e_shnum = 999; }), "table of sections"));
  CHECK(contains(section_refusal_after([](Library& l) { l.header.e_shentsize = 1; }), "wrong size"));
  CHECK(contains(section_refusal_after([](Library& l) { l.header.e_phentsize = 1; }), "wrong size"));
  CHECK(contains(section_refusal_after([](Library& l) { l.header.e_phnum = 0; }), "nothing to load"));
  CHECK(contains(section_refusal_after([](Library& l) { l.header.e_shstrndx = 7; }), "section names"));
  CHECK(contains(section_refusal_after([](Library& l) { l.sections[1].sh_type = SHT_NOBITS; }), "section names"));
  CHECK(contains(section_refusal_after([](Library& l) { l.sections[2].sh_name = 9999; }), "no section"));
  CHECK(contains(section_refusal_after([](Library& l) { l.sections[2].sh_type = SHT_NOBITS; }), "is empty"));
  CHECK(contains(section_refusal_after([](Library& l) { l.sections[2].sh_size = 0; }), "is empty"));
  CHECK(contains(section_refusal_after([](Library& l) { l.sections[2].sh_flags = SHF_COMPRESSED; }), "compressed"));
  CHECK(contains(section_refusal_after([](Library& l) { std::memset(l.names, 'x', sizeof l.names); }), "no section"));
}

TEST_CASE("every cut and every flipped bit is an error or a stamp") {
  const std::string good = Library().file();
  for (std::size_t length = 0; length < good.size(); ++length) CHECK(section_refusal(good.substr(0, length)) != "");
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string flipped = good;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    try {
      const std::string stamp = elf_section(flipped, "libx.so");
      REQUIRE(stamp.size() <= good.size());
    } catch (const ditto::Error& error) {
      REQUIRE(error.kind() == ErrorKind::plugin);
    }
  }
}
