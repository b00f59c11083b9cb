// A log of one JSON object a line that several ranks write together, and that survives being killed at any byte.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "core/formats/file.h"

namespace ditto {

class SharedLines {
 public:
  explicit SharedLines(std::string path) : path_(std::move(path)) {}
  // Whole lines, which other ranks' do not part: all of them are with the system when this returns, or none (a full
  // disk). The file is made by the first. Throws Error(data) with the system's reason.
  void append(std::string_view lines);
  void close() { file_ = formats::Descriptor(); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  formats::Descriptor file_;
};

// Every line that is an object, in order; how many lines are none, torn or otherwise. A file that is not there has
// none.
int64_t read_lines(const std::string& path, const std::function<void(const nlohmann::json&)>& take);

}  // namespace ditto
