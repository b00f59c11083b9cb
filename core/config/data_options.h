// The sections of a recipe that say how data is read: [loader] and [batch].
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ditto/options.h>

namespace ditto {

// [loader]
struct LoaderOptions {
  int64_t threads = 2;
  int64_t prefetch = 4;
  int64_t encode_ahead = 0;
  int64_t max_bad = 16;
  double stall_s = 60;
  bool strict = false;
  bool shuffle = true;
  bool flip = false;
  std::string encoded;
  void read(OptionReader& option);
};

// [batch]
struct BatchOptions {
  std::string plan = "contiguous";
  int64_t tokens = 0;
  std::vector<std::string> sizes;
  std::string weigh_by = "samples";
  void read(OptionReader& option);
};

}  // namespace ditto
