// Where a command was told to write, looked at before it has worked for it.
#pragma once

#include <string>

namespace ditto::formats {

// The folder, made if it is not there. Throws Error(config) naming `option` and the system's reason where it cannot be
// made, or cannot be written into; Error(data) where the disk has no room for it.
void make_output_folder(const std::string& path, const std::string& option);
// A file that is to be written, before there is anything to write. Throws Error(config) naming `option` for a folder, a
// link that leads nowhere, which the file would replace, and a folder around it that cannot be written into.
void require_output_file(const std::string& path, const std::string& option);
void require_writable(const std::string& folder, const std::string& option);  // one that is there

}  // namespace ditto::formats
