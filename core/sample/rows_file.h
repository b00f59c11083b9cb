// A file of rows of one size that come in any order, from any rank and in any number of goes: it has its name once it
// is whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/formats/file.h"
#include "core/formats/tensor/npz.h"
#include "core/sample/shared_lines.h"

namespace ditto {

// Where its rows stand.
struct RowsLayout {
  uint64_t begin = 0, row_bytes = 0, file_bytes = 0;  // of the first row; of each; of the file
  // What surrounds the rows, which names the request; `crc`: crc32 of all rows.
  std::function<std::vector<formats::Piece>(uint32_t crc)> around;
};

// Until then it is FILE.part, and FILE.part.jsonl says of what request it is, which rows are in it, and the crc32 of
// each: a stop loses the rows that were under way, and a row that another program has changed is found.
class RowsFile {
 public:
  // `option`: who named the file, for messages.
  RowsFile(std::string path, const std::string& option, int64_t rows, RowsLayout layout, std::string request);
  // On rank 0: which rows are there (1). `overwrite`: what is there of another request, or was changed, will be
  // replaced. Throws Error(config) for that otherwise, and where another command writes it, and Error(data) for what
  // was changed. Changes nothing.
  std::vector<uint8_t> look(bool overwrite);
  void begin();  // on rank 0, after that and before any rank writes
  void write(int64_t row, std::span<const std::byte> bytes);
  void note();  // says that the rows are there which this rank has written since
  // Of any rank's that is there, before and after it has its name. Throws Error(data) for one that is not.
  void read(int64_t row, std::span<std::byte> bytes);
  void close();   // on every rank, once it has written all its rows; others see them then on other machines, too
  void finish();  // then on rank 0: the file has its name. Throws Error(data)
  const std::string& path() const { return path_; }
  uint64_t bytes() const { return layout_.file_bytes; }
  const std::string& request() const { return request_; }

 private:
  enum class Found { nothing, other, changed, whole };
  void claim();
  Found look_at_file() const;
  std::vector<uint8_t> rows_listed(std::vector<uint32_t>& crcs) const;
  std::string changed_row(const std::vector<uint8_t>& there, const std::vector<uint32_t>& crcs) const;
  bool is_of_request() const;
  uint32_t crc_of_rows(const formats::RandomFile& file) const;
  uint64_t place(int64_t row) const { return layout_.begin + static_cast<uint64_t>(row) * layout_.row_bytes; }

  std::string path_, part_, where_;
  int64_t rows_;
  RowsLayout layout_;
  std::string request_;
  SharedLines list_;
  formats::Descriptor file_, claim_;
  std::string written_;  // lines of the rows that are not noted yet
  bool is_whole_ = false, anew_ = false;
  std::vector<uint8_t> listed_;  // when rows were last read
  std::vector<uint32_t> listed_crcs_;
};

}  // namespace ditto
