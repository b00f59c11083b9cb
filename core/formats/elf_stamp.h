// Reads a plugin's stamp out of its file without loading it.
#pragma once

#include <string>
#include <string_view>

namespace ditto::formats {

// The bytes of section `section` of a shared library, as they lie in the file. Nothing of the file is run or mapped
// for execution. Throws Error(plugin), naming the path, if the file cannot be read, is no ELF file, is cut off, is
// built for another machine than this program, is no shared library, or has no such section (or has it twice, or too
// large).
std::string read_elf_section(const std::string& path, std::string_view section = ".ditto.stamp");
// The same from bytes in memory; `where` names them in messages.
std::string elf_section(std::string_view file, std::string_view where, std::string_view section = ".ditto.stamp");

}  // namespace ditto::formats
