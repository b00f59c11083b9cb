// Names of video files.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace ditto::formats {

// Whether a file of this name, or of this extension alone ("mp4"), is taken for a video.
inline bool is_video_name(std::string_view name) {
  constexpr std::array<std::string_view, 9> kExtensions{"mp4", "m4v", "mov", "mkv", "webm", "avi", "mpg", "mpeg", "ts"};
  std::string extension(name.substr(std::min(name.rfind('.') + 1, name.size())));  // all of it where there is no dot
  for (char& c : extension)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return std::find(kExtensions.begin(), kExtensions.end(), extension) != kExtensions.end();
}

}  // namespace ditto::formats
