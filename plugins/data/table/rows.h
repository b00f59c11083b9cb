// Which samples a table holds: its rows, but for the bad ones and those that the recipe leaves out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ditto/formats/text_table.h>

#include "options.h"
#include "video_files.h"

namespace table {

struct Row {
  std::size_t number = 0;  // in the table
  int64_t label = 0;
  int64_t frames = 1, interval = 1, first = 0;
  std::size_t size = 0;  // in Options::all_sizes
};

// The pictures in a folder, a frame each: 2.png before 10.png. Throws Error(data) at `place` where there is none.
std::vector<std::string> frame_files(const std::string& folder, const std::string& place);

bool is_folder(const std::string& path);  // not: a file, or nothing that can be looked at

class Rows {
 public:
  // Throws Error(data) for a table that cannot be read, and where no row is left; Error(config) for labels that
  // data.classes does not reach; Error(plugin) for video files without a decoder.
  Rows(const Options& options, const std::string& table, const std::string& folder, const ditto::Source::Needs& needs);

  const VideoFiles& video_files() const { return video_files_; }
  std::size_t count() const { return rows_.size(); }
  const Row& row(std::size_t index) const { return rows_.at(index); }
  std::string path(const Row& row) const;
  std::string caption(const Row& row) const;  // as it was meant (formats::plain_text)
  std::string place(const Row& row) const;    // "photos.csv:17:cats/1.jpg"
  const std::vector<std::string>& warnings() const { return warnings_; }
  std::string text() const;                // what decides which samples there are
  std::vector<std::string> holds() const;  // as Source::holds has them
  std::vector<std::string> notes() const;

 private:
  std::string text_of(const Row& row) const;
  std::string part_in_a_column() const;
  std::string rows_twice() const;
  std::string line(std::size_t number) const;  // "photos.csv:17"
  std::string_view cell(std::size_t number, const std::string& column) const;
  double number_in(std::size_t number, const std::string& column) const;
  int64_t count_in(std::size_t number, const std::string& column, int64_t least, int64_t fallback) const;
  int64_t label_in(std::size_t number) const;
  bool is_taken(std::size_t number) const;
  void read_rows();
  void check_labels() const;
  void choose_sizes();
  Size stored_size(const Row& row) const;

  Options options_;
  std::string table_, folder_;
  std::vector<std::string> columns_;
  std::vector<Limit> least_, most_;
  ditto::formats::TextTable cells_;
  std::vector<Row> rows_;
  VideoFiles video_files_;
  std::vector<std::string> warnings_;
};

}  // namespace table
