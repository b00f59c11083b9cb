// The most that sizes in a recipe may be. A slip of the finger is refused when the recipe is read, before memory is
// asked for; each lies far above what anybody trains (the largest diffusion transformers have a hundred blocks, and
// tokens of ten thousand numbers).
#pragma once

#include <cstdint>

namespace ditto::most {

inline constexpr int64_t kBlocks = 4096;
inline constexpr int64_t kWidth = 65'536;  // of a token
inline constexpr int64_t kHeads = 4096;
inline constexpr int64_t kPatch = 1024;    // a side, in pixels, or frames
inline constexpr int64_t kMlpRatio = 256;  // an MLP's hidden width over a token's
inline constexpr int64_t kExperts = 4096;
inline constexpr int64_t kClasses = 1'000'000;
inline constexpr int64_t kSide = 16'384;               // of a picture; and of a text, or a video, in tokens or frames
inline constexpr int64_t kNumbers = int64_t{1} << 27;  // in one sample
inline constexpr int64_t kTimes = 1'000'000;           // of a schedule or of a sampler's way: tables are made of them

}  // namespace ditto::most
