// Each parser of foreign bytes as a function of the bytes. What a parser may do with them is to return, or to throw one
// ditto::Error of its own kind that names the place; anything else ends the process.
#pragma once

#include <span>
#include <string_view>

namespace ditto::fuzz {

struct Target {
  const char* name;  // also of its folder in corpus/
  void (*run)(std::string_view input);
};

std::span<const Target> targets();

}  // namespace ditto::fuzz
