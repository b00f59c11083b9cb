#include "core/sample/rows_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include <ditto/error.h>
#include <ditto/text.h>

namespace ditto {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kLookedAt = 4096;  // bytes at each end of a file, in which its request would stand

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw Error(ErrorKind::data, path, std::string("cannot be ") + what + ": " + std::strerror(errno));
}

formats::Descriptor opened(const std::string& path) {
  formats::Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (file.get() < 0) fail(path, "opened");
  return file;
}

void write_at(const formats::Descriptor& file, const std::string& path, uint64_t at, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::pwrite(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail(path, "written");
    bytes = bytes.subspan(static_cast<size_t>(done));
    at += static_cast<uint64_t>(done);
  }
}

bool is_there(const std::string& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

}  // namespace

RowsFile::RowsFile(std::string path, const std::string& option, int64_t rows, RowsLayout layout, std::string request)
    : path_(std::move(path)),
      part_(path_ + ".part"),
      where_(option + " " + path_),
      rows_(rows),
      layout_(std::move(layout)),
      request_(std::move(request)),
      list_(part_ + ".jsonl") {}

uint32_t RowsFile::crc_of_rows(const formats::RandomFile& file) const {
  uint32_t crc = 0;
  std::vector<std::byte> row(layout_.row_bytes);
  for (int64_t i = 0; i < rows_; ++i) {
    file.read(place(i), row);
    crc = formats::crc32(row, crc);
  }
  return crc;
}

// Every byte of a file that says it is of this request is compared with what it must be.
RowsFile::Found RowsFile::look_at_file() const {
  if (!is_there(path_)) return Found::nothing;
  const auto file = formats::RandomFile::open(path_);
  const auto ends = std::min(file->size(), kLookedAt);
  std::string text(2 * ends, '\0');
  const auto bytes = std::as_writable_bytes(std::span(text));
  file->read(0, bytes.first(ends));
  file->read(file->size() - ends, bytes.last(ends));
  if (text.find(request_) == text.npos) return Found::other;
  if (file->size() != layout_.file_bytes) return Found::changed;
  for (const auto& [at, piece] : layout_.around(crc_of_rows(*file))) {
    const auto found = file->read(at, piece.size());
    if (!std::equal(found.begin(), found.end(), std::as_bytes(std::span(piece)).begin())) return Found::changed;
  }
  return Found::whole;
}

bool RowsFile::is_of_request() const {
  bool is_first = true, is_same = false;
  read_lines(list_.path(), [&](const nlohmann::json& line) {
    if (!std::exchange(is_first, false)) return;
    const nlohmann::json none;
    is_same = line.value("request", none) == request_ && line.value("rows", none) == rows_ &&
              line.value("row_bytes", none) == layout_.row_bytes;
  });
  return is_same;
}

std::vector<uint8_t> RowsFile::rows_listed(std::vector<uint32_t>& crcs) const {
  std::vector<uint8_t> there(static_cast<size_t>(rows_), 0);
  crcs.assign(there.size(), 0);
  read_lines(list_.path(), [&](const nlohmann::json& line) {
    const auto row = line.find("row"), crc = line.find("crc");
    if (row == line.end() || crc == line.end() || !row->is_number_unsigned() || !crc->is_number_unsigned()) return;
    const auto i = row->get<uint64_t>();
    if (i >= there.size()) return;
    there[i] = 1;
    crcs[i] = crc->get<uint32_t>();
  });
  return there;
}

// What is wrong with the rows that are listed; empty: nothing.
std::string RowsFile::changed_row(const std::vector<uint8_t>& there, const std::vector<uint32_t>& crcs) const {
  if (!is_there(part_)) return "is gone";
  const auto file = formats::RandomFile::open(part_);
  if (file->size() > layout_.file_bytes)
    return fmt::format("has {} bytes, more than the whole file's {}", file->size(), layout_.file_bytes);
  std::vector<std::byte> row(layout_.row_bytes);
  for (size_t i = 0; i < there.size(); ++i) {
    if (!there[i]) continue;
    const auto at = place(static_cast<int64_t>(i));
    if (at + row.size() > file->size()) return fmt::format("has {} bytes, and ends before sample {}", file->size(), i);
    file->read(at, row);
    if (formats::crc32(row) != crcs[i]) return fmt::format("holds another sample {} than was written", i);
  }
  return {};
}

// One command a file; its lock goes with the process. A file system without locks is no reason not to sample.
void RowsFile::claim() {
  claim_ = formats::Descriptor(::open(part_.c_str(), O_RDONLY | O_CLOEXEC));
  if (claim_.get() >= 0 && ::flock(claim_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    throw Error(ErrorKind::config, where_, "is being written by another command",
                "wait for its end, or name another file");
}

std::vector<uint8_t> RowsFile::look(bool overwrite) {
  claim();
  std::vector<uint8_t> none(static_cast<size_t>(rows_), 0);
  const auto found = look_at_file();
  is_whole_ = found == Found::whole;
  if (is_whole_) return std::vector<uint8_t>(none.size(), 1);
  if (found == Found::changed && !overwrite)
    throw Error(ErrorKind::data, where_, "is of this request, and another program has changed it",
                "name another file, or add --overwrite, which makes it anew");
  if (found == Found::other && !overwrite)
    throw Error(ErrorKind::config, where_, "is there already, and not of this request",
                "name another file, or add --overwrite, which replaces it");
  anew_ = true;
  if (!is_there(list_.path()) && !is_there(part_)) return none;
  if (!is_of_request()) {
    if (overwrite) return none;
    throw Error(ErrorKind::config, where_, shown(part_) + " beside it is of another request, which is not done",
                "name another file, give that request again, or add --overwrite, which begins anew");
  }
  std::vector<uint32_t> crcs;
  auto there = rows_listed(crcs);
  const auto changed = changed_row(there, crcs);
  anew_ = !changed.empty();
  if (!anew_) return there;
  if (overwrite) return none;
  throw Error(ErrorKind::data, part_, changed + ": another program has changed it",
              "remove it and " + shown(list_.path()) + ", or add --overwrite, which begins anew");
}

void RowsFile::begin() {
  std::error_code ignored;
  if (is_whole_) {
    fs::remove(list_.path(), ignored);  // of a command that was killed between giving the name and this
    return;
  }
  if (!anew_) return;
  // The list first: it says no row of a file that is not there. And what has the name is of another request.
  for (const auto& path : {list_.path(), part_, path_})
    if (fs::remove(path, ignored); is_there(path)) fail(path, "removed");
  list_.append(
      fmt::format("{{\"request\":\"{}\",\"rows\":{},\"row_bytes\":{}}}\n", request_, rows_, layout_.row_bytes));
  list_.close();
  opened(part_);
  claim();
}

void RowsFile::write(int64_t row, std::span<const std::byte> bytes) {
  if (bytes.size() != layout_.row_bytes)
    throw Error(ErrorKind::shape, where_,
                fmt::format("sample {} is of {} bytes, expected {}", row, bytes.size(), layout_.row_bytes));
  if (file_.get() < 0) file_ = opened(part_);
  write_at(file_, part_, place(row), bytes);
  written_ += fmt::format("{{\"row\":{},\"crc\":{}}}\n", row, formats::crc32(bytes));
}

void RowsFile::read(int64_t row, std::span<std::byte> bytes) {
  const bool is_named = is_there(path_);
  formats::RandomFile::open(is_named ? path_ : part_)->read(place(row), bytes);
  if (is_named) return;  // whole, and looked at
  const auto i = static_cast<size_t>(row);
  if (listed_.empty() || !listed_[i]) listed_ = rows_listed(listed_crcs_);
  if (!listed_[i] || formats::crc32(bytes) != listed_crcs_[i])
    throw Error(ErrorKind::data, part_, fmt::format("does not hold sample {} as it was written", row),
                "remove it, and give the command again");
}

void RowsFile::note() {
  if (!written_.empty()) list_.append(written_);
  written_.clear();
}

void RowsFile::close() {
  if (file_.get() >= 0 && ::close(file_.release()) != 0) fail(part_, "written");
  list_.close();
}

void RowsFile::finish() {
  if (is_whole_) return;
  std::vector<uint32_t> crcs;
  const auto there = rows_listed(crcs);
  if (const auto first = std::find(there.begin(), there.end(), 0); first != there.end())
    throw Error(ErrorKind::data, list_.path(),
                fmt::format("does not list sample {}, which was written", first - there.begin()),
                "give the command again: it makes what is missing");
  uint32_t crc = 0;
  for (const auto one : crcs) crc = formats::joined_crc32(crc, one, layout_.row_bytes);
  auto file = opened(part_);
  for (const auto& [at, piece] : layout_.around(crc)) write_at(file, part_, at, std::as_bytes(std::span(piece)));
  if (::fsync(file.get()) != 0 && errno != EINVAL) fail(part_, "synced to disk");
  if (::close(file.release()) != 0) fail(part_, "written");
  if (std::rename(part_.c_str(), path_.c_str()) != 0) fail(path_, "replaced");
  std::error_code ignored;
  fs::remove(list_.path(), ignored);
  is_whole_ = true;
}

}  // namespace ditto
