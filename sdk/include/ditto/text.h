// Text from elsewhere, fit to be shown to people. No LibTorch here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ditto/visibility.h>

namespace ditto {

// Bytes of the UTF-8 character that `text` begins with; 0: it begins with none (overlong forms and surrogates are
// none).
DITTO_API std::size_t utf8_length(std::string_view text);

inline constexpr std::size_t kNameShown = 200;       // bytes of a name in a message
inline constexpr std::size_t kSentenceShown = 4000;  // of a sentence with names in it

// A file's, a tensor's or an option's name, a cell of a table, a plugin's words: as one line of valid UTF-8 without
// anything that a terminal or a reader's eye would obey. Control characters, line and paragraph separators, marks that
// turn the direction of writing and letters without width are written out (\n, \x1b, \u202e), and so are bytes that are
// no UTF-8 (\xff). Of a text longer than `most` bytes head and tail are shown, with its length. Shown text is shown as
// it is.
DITTO_API std::string shown(std::string_view text, std::size_t most = kNameShown);

// "32x48" as {32, 48}, "16x32x32" as {16, 32, 32}: numbers from 1 to 10^9 with an x between. Empty: it is none such.
DITTO_API std::vector<std::int64_t> sides_of(std::string_view text);

}  // namespace ditto
