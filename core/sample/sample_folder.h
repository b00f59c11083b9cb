// The folder of `ditto sample --out`: files by name, and samples.jsonl, a line a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/formats/file.h"
#include "core/sample/shared_lines.h"

namespace ditto {

// A file gets its name once it is whole, and then its line, from any rank. Every line has the request: a command that
// asks for the same goes on with what has no line, another one is refused.
class SampleFolder {
 public:
  static constexpr const char* kList = "samples.jsonl";
  static constexpr const char* kFile = "file";
  static constexpr const char* kRequest = "request";
  static constexpr const char* kCrc = "crc32";  // of the file
  // How a sample was made; with kRequest.
  using Settings = std::function<nlohmann::json(size_t i)>;

  SampleFolder(std::string folder, std::vector<std::string> names, Settings settings);
  // On rank 0, before any rank writes: which samples are there (1). Folders are made, what a killed command left is
  // removed, and with `overwrite` what the list of another request names. `tell` hears of pictures that no list names.
  // Throws Error(config) for samples of another request, saying what differs, for files that would be replaced, and
  // where another process writes into the folder; Error(data) for a file that is not what its line says: with
  // `overwrite` it is made again.
  std::vector<uint8_t> prepare(bool overwrite, const std::function<void(const std::string&)>& tell);
  std::string path(const std::string& name) const;
  const std::string& name(size_t i) const { return names_[i]; }
  void add(size_t i, std::span<const std::byte> bytes);  // its file, and then its line
  void close() { list_.close(); }                        // on every rank, once all of its samples are added
  void finish();                                         // then on rank 0: the list in the order of the requests
  nlohmann::json line(size_t i) const;                   // settings, and the file's name
  static bool is_sheet(std::string_view name);           // grid.png, grid.webp

 private:
  std::vector<uint8_t> go_on(bool overwrite);
  void require_ours(const std::string& name) const;
  void begin(bool overwrite, const std::string& difference);
  std::vector<std::string> earlier_files() const;
  std::string difference(const nlohmann::json& earlier) const;
  void remove_unfinished() const;
  void tell_unlisted(const std::function<void(const std::string&)>& tell) const;
  void write_list(const std::vector<uint8_t>& there) const;

  const std::string folder_;
  const std::vector<std::string> names_;
  const Settings settings_;
  std::map<std::string_view, size_t> index_;  // of names_
  std::vector<uint32_t> crcs_;                // of the files that are listed
  SharedLines list_;
  formats::Descriptor claim_;
};

}  // namespace ditto
