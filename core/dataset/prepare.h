// Makes tar shards from a folder of pictures or a table of numbers. The same input gives the same bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace ditto {

struct PrepareOptions {
  std::string out;  // folder; made if it is not there; shards that are there already are refused
  std::int64_t shard_samples = 10000;
  double validation = 0;  // share of every class's samples held out (rounded down), in [0, 1)
  // Of a folder: where the classes' shares come to fewer in all, the share is taken of all samples together.
  std::int64_t least_held_out = 0;
  std::function<void(std::int64_t done, std::int64_t all)> progress = {};  // may be empty
};

// How a picture that is not square becomes one: its middle, all of it on white, or all of it stretched.
enum class Fit { crop, pad, stretch };
inline const std::vector<std::pair<std::string, Fit>> kFits{
    {"crop", Fit::crop}, {"pad", Fit::pad}, {"stretch", Fit::stretch}};

// Of a folder of pictures.
struct FolderOptions {
  int size = 0;                    // above 0: every picture becomes a square of this side (picture_resize.h), as PNG
  Fit fit = Fit::crop;             // and how; of all but `crop` notes and report say it by picture
  bool skip_bad = false;           // what does not decode is left out and reported, instead of ending it
  bool splits_as_classes = false;  // folders called "train" and "val" are classes as others are
  // Told of what cannot be read, one after another in order, where it is several and refused; may be empty.
  std::function<void(const std::vector<std::string>& bad)> tell_bad = {};
  std::string captions;  // a table as picture_notes.h says, whose names are relative to the folder; "": none
  int64_t threads = 0;   // 0: one for each processor that may be used. The result does not depend on it
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
  std::vector<std::string> left_out;  // of a folder or shards: ".svg, not PNG, … (3): cat/a.svg, …", a line a reason
  std::vector<std::string> bad;       // "cat/b.png: the picture is empty", with FolderOptions::skip_bad
  std::vector<std::string> notes;     // what else is worth knowing
};

// Every picture under `folder` (picture_folder.h says what is one): PNG, JPEG, WebP and AVIF byte for byte, TIFF, GIF
// and BMP as PNGs of the same pixels. Subfolders are the classes, numbered in alphabetical order and written to
// OUT/classes.json; a folder without subfolders gives pictures without labels. A caption, beside a picture
// (picture_folder.h) or in a table (picture_notes.h), comes along as member "txt", as formats::plain_text has it;
// member "json" has the file's name ("file"), that of its
// class
// ("class"), and all that a table says of it. OUT/report.jsonl says of every file what became of it. Samples are in
// order of their paths. Nothing has its name in OUT before all is written. Throws Error(data) naming the first picture
// that does not decode, Error(config) for a folder without pictures, and for one that is laid out in parts to learn
// from and held out (split_folders.h).
Prepared prepare_folder(const std::string& folder, const PrepareOptions& options, const FolderOptions& pictures = {});

// Every row of a table (commas, semicolons or tabs; plain or gzip) as an 8-bit PNG of round(value * 255 / largest).
// Throws Error(data) with line and column for values outside 0 … largest and labels that are no integer.
Prepared prepare_table(const std::string& table, const TableLayout& layout, const PrepareOptions& options);

}  // namespace ditto
