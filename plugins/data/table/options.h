// Section [data] of a recipe with plugin = "table".
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ditto/options.h>

namespace table {

inline constexpr const char* kNone = "none";

struct Size {
  int64_t height = 0, width = 0;
  bool operator==(const Size&) const = default;
};

struct Limit {
  std::string column;
  double value;
};

struct Options {
  std::string table, validation_table, folder;
  std::string path = "path", label = kNone, caption = kNone, frames = kNone, interval = kNone, first = kNone;
  std::string decoder = "ffmpeg";
  std::string height = kNone, width = kNone;
  std::vector<std::string> at_least, at_most;
  int64_t classes = 0;
  std::vector<std::string> names;
  std::vector<int64_t> size;
  std::vector<std::string> sizes;
  int64_t channels = 3;

  void read(ditto::OptionReader& option);

  bool has_videos() const { return frames != kNone; }
  std::vector<Size> all_sizes() const;          // `size`, or those of `sizes`
  std::vector<Limit> limits(bool least) const;  // at_least, or at_most
  std::vector<std::string> columns() const;     // all that are named, each once
};

}  // namespace table
