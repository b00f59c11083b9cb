// Who could have written a library: a plugin runs with all rights of this program's user.
#pragma once

#include <string>

namespace ditto {

// Why the library at `path` (canonical) is not to be opened: one sentence with the remedy; empty: nobody could have
// written it who could not have written this program. So the file and its folder belong to root, to the user or to the
// program's owner, and neither they nor a folder above are open for everybody to write, unless the program is as well.
// A folder with the sticky bit (/tmp) may be: others cannot replace there what is not theirs.
std::string distrust(const std::string& path);

}  // namespace ditto
