// Names of what systems and tools leave behind in people's folders and archives, which nobody means to learn from.
#pragma once

#include <string_view>

namespace ditto::formats {

// Of a file or folder, without those above it: what is hidden (begins with a dot, as macOS's "._x.jpg" beside x.jpg),
// and what macOS, Windows, NAS systems, Linux and Python put there, in any case of letters. "." and ".." are none.
bool is_junk_name(std::string_view name);

// Whether a relative path leads to junk or through a folder of it: "@eaDir/x.jpg/thumb.jpg".
bool is_junk_path(std::string_view path);

}  // namespace ditto::formats
