// Where a command was told to write, looked at before it has worked for it.
#pragma once

#include <string>

#include "core/formats/file.h"

namespace ditto::formats {

// The folder, made if it is not there. Throws Error(config) naming `option` and the system's reason where it cannot be
// made, or cannot be written into; Error(data) where the disk has no room for it.
void make_output_folder(const std::string& path, const std::string& option);
// Nobody else writes into the folder as long as the result lives: one command a folder, and it leaves no file in it. A
// file system without locks is no reason to refuse. Waits a few seconds for the ranks of a command that was killed.
// Throws Error(config).
Descriptor claim_output_folder(const std::string& path, const std::string& option);
// A file that is to be written, before there is anything to write. Throws Error(config) naming `option` for a folder, a
// link that leads nowhere, which the file would replace, and a folder around it that cannot be written into.
void require_output_file(const std::string& path, const std::string& option);
void require_writable(const std::string& folder, const std::string& option);  // one that is there

}  // namespace ditto::formats
