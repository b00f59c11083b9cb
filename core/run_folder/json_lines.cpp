#include "core/run_folder/json_lines.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include <ditto/error.h>

namespace ditto::report {

namespace {

std::optional<int64_t> step_of(std::string_view line) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object()) return {};
  const auto step = json.find("step");
  if (step == json.end() || !step->is_number_integer()) return {};
  return step->get<int64_t>();
}

}  // namespace

JsonLines::JsonLines(std::string path) : path_(std::move(path)) {
  open();
  formats::sync_parent(path_, ErrorKind::data);
}

void JsonLines::open() {
  file_ = formats::Descriptor(::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (file_.get() < 0) throw Error(ErrorKind::data, path_, std::string("cannot be opened: ") + std::strerror(errno));
  const off_t size = ::lseek(file_.get(), 0, SEEK_END);
  char last = '\n';
  if (size > 0 && ::pread(file_.get(), &last, 1, size - 1) == 1 && last != '\n') append("");
}

void JsonLines::sync() const {
  if (::fsync(file_.get()) != 0 && errno != EINVAL)
    throw Error(ErrorKind::data, path_, std::string("cannot be synced to disk: ") + std::strerror(errno));
}

void JsonLines::append(std::string_view object) {
  const std::string line = std::string(object) + "\n";
  std::string_view left = line;
  while (!left.empty()) {
    const ssize_t done = ::write(file_.get(), left.data(), left.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) {
      throw Error(ErrorKind::data, path_, std::string("cannot be written: ") + std::strerror(errno),
                  errno == ENOSPC ? "free some space on that disk, then resume" : "");
    }
    left.remove_prefix(static_cast<size_t>(done));
  }
}

CutBack JsonLines::cut_back(int64_t step) {
  const std::string all = formats::read_file(path_, ErrorKind::data);
  std::string_view text = all;
  CutBack result;
  std::string kept;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    const auto found = end == text.npos ? std::nullopt : step_of(line);
    if (found && *found <= step) {
      kept.append(line).push_back('\n');
      ++result.kept;
    } else {
      ++(found ? result.later : result.damaged);
    }
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
  }
  if (result.later + result.damaged == 0) return result;
  formats::write_file(path_, std::as_bytes(std::span(kept)), ErrorKind::data, formats::Sync::fsync);
  formats::sync_parent(path_, ErrorKind::data);
  open();
  return result;
}

}  // namespace ditto::report
