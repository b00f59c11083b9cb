// A log of one JSON object a line that survives being killed at any byte.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/formats/file.h"

namespace ditto::report {

struct CutBack {
  int64_t kept = 0;
  int64_t later = 0;    // lines of steps after the one asked for
  int64_t damaged = 0;  // torn or otherwise no object with an integer "step"
};

// Each append is one write() of a whole line in append mode: what a killed process leaves is whole lines, but for the
// last one when the disk was full or the machine went down. Throws Error(data) with the path and the system's reason.
class JsonLines {
 public:
  explicit JsonLines(std::string path);  // made if it is not there; a torn last line is ended, so that no line is lost
  void append(std::string_view object);  // without line breaks; is with the system when this returns
  // Keeps the lines with "step" <= step, in their order, and drops damaged ones; -1 empties the file. The file is
  // replaced by a rename, and not touched where nothing is dropped.
  CutBack cut_back(int64_t step);
  void sync() const;  // what was appended is on the disk after
  const std::string& path() const { return path_; }

 private:
  void open();
  std::string path_;
  formats::Descriptor file_;
};

}  // namespace ditto::report
