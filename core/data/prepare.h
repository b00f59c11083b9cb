// Makes tar shards from a folder of pictures or a table of numbers. The same input gives the same bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace ditto {

struct PrepareOptions {
  std::string out;  // folder; made if it is not there; shards that are there already are refused
  std::int64_t shard_samples = 10000;
  double validation = 0;  // share of every class's samples held out (rounded down), in [0, 1)
  std::function<void(std::int64_t done, std::int64_t all)> progress;  // may be empty
};

// How a table's rows are pictures.
struct TableLayout {
  std::int64_t height = 0, width = 0, channels = 1;  // values row by row, channels last
  double largest = 255;                              // what becomes white (255); 0 is black
  std::string label = "last";                        // "last", "first", "none", or a column's name
};

struct Prepared {
  std::vector<std::string> shards;  // paths, in order
  std::int64_t train = 0, validation = 0;
  std::vector<std::string> classes;   // by number; empty: numbers only, or none
  std::vector<std::string> left_out;  // of a folder: ".bmp, not PNG, JPEG or WebP (3): cat/a.bmp, …", a line a reason
};

// Every picture under `folder` (picture_folder.h says what is one), byte for byte as it is. Subfolders are the classes,
// numbered in alphabetical order and written to OUT/classes.json; a folder without subfolders gives pictures without
// labels. A caption "NAME.txt" beside a picture comes along. Samples are in order of their paths. Nothing has its name
// in OUT before all is written. Throws Error(data) naming a picture that does not decode, Error(config) for a folder
// without pictures.
Prepared prepare_folder(const std::string& folder, const PrepareOptions& options);

// Every row of a table (commas, semicolons or tabs; plain or gzip) as an 8-bit PNG of round(value * 255 / largest).
// Throws Error(data) with line and column for values outside 0 … largest and labels that are no integer.
Prepared prepare_table(const std::string& table, const TableLayout& layout, const PrepareOptions& options);

}  // namespace ditto
