// A text as a text encoder's network sees it. No LibTorch here.
#pragma once

#include <cstdint>
#include <vector>

namespace ditto {

// Begin, text, end, padding.
struct TokenRow {
  std::vector<std::int64_t> ids;  // as many as the encoder's rows have places; each the place of a piece in its table
  std::int64_t length = 0;        // of begin, text and end: a mask is 1 at these places, 0 behind
};

}  // namespace ditto
