#include "core/sample/sample_folder.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <utility>

#include <fmt/format.h>

#include <ditto/error.h>
#include <ditto/text.h>

#include "core/formats/output_folder.h"
#include "core/formats/picture/picture.h"
#include "core/formats/tensor/npz.h"
#include "core/formats/text/json.h"

namespace ditto {

namespace fs = std::filesystem;

namespace {

constexpr size_t kMostDifferences = 3;
constexpr const char* kBeside = ".tmp-";  // formats::write_file's, with a process's number

bool is_picture(const fs::path& path) { return path.extension() == ".png" || path.extension() == ".webp"; }

std::string text_of(const nlohmann::json& value) {
  return value.is_string() ? value.get<std::string>() : formats::ascii_json(value, -1);
}

// "000003.png" of "000003.png.tmp-1234"; empty: it is no such name.
std::string unfinished(const std::string& name) {
  const auto at = name.rfind(kBeside);
  const auto digits = at == name.npos ? std::string_view() : std::string_view(name).substr(at + std::strlen(kBeside));
  const bool is_number = !digits.empty() && digits.find_first_not_of("0123456789") == digits.npos;
  return is_number ? name.substr(0, at) : std::string();
}

}  // namespace

SampleFolder::SampleFolder(std::string folder, std::vector<std::string> names, Settings settings)
    : folder_(std::move(folder)),
      names_(std::move(names)),
      settings_(std::move(settings)),
      list_((fs::path(folder_) / kList).string()) {
  for (size_t i = 0; i < names_.size(); ++i) index_.emplace(names_[i], i);
}

bool SampleFolder::is_sheet(std::string_view name) { return name == "grid.png" || name == "grid.webp"; }

std::string SampleFolder::path(const std::string& name) const { return (fs::path(folder_) / name).string(); }

nlohmann::json SampleFolder::line(size_t i) const {
  auto one = settings_(i);
  one[kFile] = names_[i];
  return one;
}

std::vector<uint8_t> SampleFolder::prepare(bool overwrite, const std::function<void(const std::string&)>& tell) {
  formats::make_output_folder(folder_, "--out");
  claim_ = formats::claim_output_folder(folder_, "--out");
  bool is_first = true, is_same = false;
  std::string why;
  const auto damaged = read_lines(list_.path(), [&](const nlohmann::json& earlier) {
    if (!std::exchange(is_first, false)) return;
    is_same = !names_.empty() && earlier.value(kRequest, nlohmann::json()) == settings_(0)[kRequest];
    if (!is_same) why = difference(earlier);
  });
  std::error_code ignored;
  // A command that was killed before its first picture leaves a list without lines.
  is_same = is_same || (is_first && damaged == 0 && fs::is_regular_file(list_.path(), ignored));
  if (!is_same) begin(overwrite, why);
  for (const auto& name : names_)
    if (const auto parent = fs::path(name).parent_path(); !parent.empty())
      formats::make_output_folder(path(parent.string()), "--name");
  remove_unfinished();
  auto there = go_on(overwrite);
  tell_unlisted(tell);
  return there;
}

// What the list of an earlier command names, as far as it lies in the folder, with list and sheets.
std::vector<std::string> SampleFolder::earlier_files() const {
  std::vector<std::string> files;
  std::error_code ignored;
  const auto home = fs::canonical(folder_, ignored);
  const auto add = [&](const std::string& name) {
    const auto file = fs::canonical(path(name), ignored);  // a folder in it may be a link to another
    if (file == home / name && fs::is_regular_file(file, ignored)) files.push_back(name);
  };
  bool is_listed = false;
  read_lines(list_.path(), [&](const nlohmann::json& one) {
    const auto file = one.find(kFile);
    if (file == one.end() || !file->is_string()) return;
    is_listed = true;
    const fs::path name = file->get<std::string>();
    if (name.is_relative() && is_picture(name)) add(name.string());
  });
  for (const char* name : {"grid.png", "grid.webp"})
    if (is_listed) add(name);
  add(kList);
  return files;
}

std::string SampleFolder::difference(const nlohmann::json& earlier) const {
  if (!earlier.contains(kRequest)) return "its list does not say by which request";
  const auto file = earlier.value(kFile, nlohmann::json());
  const auto same = file.is_string() ? index_.find(file.get_ref<const std::string&>()) : index_.end();
  std::set<std::string> skipped{"/request", "/file", "/crc32"};
  if (same == index_.end()) skipped.insert({"/seed", "/class", "/class_name", "/row", "/prompt", "/negative_prompt"});
  const auto ours = settings_(same == index_.end() ? 0 : same->second).flatten(), theirs = earlier.flatten();
  std::vector<std::string> parts;
  const auto compare = [&](const nlohmann::json& in, const std::string& key) {
    if (skipped.count(key) || (ours.contains(key) && theirs.contains(key) && ours[key] == theirs[key])) return;
    if (&in == &ours && theirs.contains(key)) return;  // said already
    auto name = key.substr(1);
    std::replace(name.begin(), name.end(), '/', '.');
    parts.push_back(fmt::format("{} is {} there and {} here", name,
                                theirs.contains(key) ? text_of(theirs[key]) : "unset",
                                ours.contains(key) ? text_of(ours[key]) : "unset"));
  };
  for (const auto* in : {&theirs, &ours})
    for (const auto& [key, value] : in->items()) compare(*in, key);
  if (parts.empty()) return "its seeds, prompts, classes, names, conditions, noise or weights are others";
  std::string text;
  for (size_t i = 0; i < std::min(parts.size(), kMostDifferences); ++i) text += (i == 0 ? "" : ", ") + shown(parts[i]);
  return text + (parts.size() > kMostDifferences ? fmt::format(", and {} more", parts.size() - kMostDifferences) : "");
}

void SampleFolder::begin(bool overwrite, const std::string& difference) {
  auto earlier = earlier_files();
  if (!earlier.empty() && !overwrite)
    throw Error(ErrorKind::config, "--out " + folder_,
                fmt::format("holds {} file{} of samples from before ({}), of another request{}", earlier.size(),
                            earlier.size() == 1 ? "" : "s", shown(earlier.front()),
                            difference.empty() ? "" : ": " + difference),
                "name another folder, or add --overwrite, which removes them");
  std::sort(earlier.begin(), earlier.end());
  std::error_code ignored;
  auto names = names_;
  if (!names.empty()) names.push_back("grid" + fs::path(names.front()).extension().string());
  for (const auto& name : names)
    if (fs::exists(fs::symlink_status(path(name), ignored)) &&
        !std::binary_search(earlier.begin(), earlier.end(), name))
      throw Error(ErrorKind::config, "--out " + folder_,
                  fmt::format("holds {}, which no list of samples names, and would be replaced", shown(name)),
                  "name another folder, or move that file away");
  for (const auto& name : earlier)
    if (name != kList) fs::remove(path(name), ignored);
  fs::remove(list_.path(), ignored);  // last: until then it names what is left
  list_.append("");                   // from now on what has a name of ours is ours
  list_.close();
}

// A file of a sample's name that has no line: of this request, or somebody's. Of a video nothing in it says so.
void SampleFolder::require_ours(const std::string& name) const {
  const auto file = path(name);
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(file, ignored)) || !name.ends_with(".png")) return;
  try {
    const auto bytes = formats::read_file(file, ErrorKind::data);
    for (const auto& [keyword, text] : formats::read_png_text(std::as_bytes(std::span(bytes)), file))
      if (text.find(settings_(0)[kRequest].get<std::string>()) != text.npos) return;
  } catch (const Error&) {  // no PNG
  }
  throw Error(ErrorKind::config, "--out " + folder_,
              fmt::format("holds {}, which no list of samples names, and would be replaced", shown(name)),
              "name another folder, or move that file away");
}

// The list and the files agree after: a line without its file goes, and a file that was killed before its line.
std::vector<uint8_t> SampleFolder::go_on(bool overwrite) {
  std::vector<uint8_t> there(names_.size(), 0), listed(names_.size(), 0);
  crcs_.assign(names_.size(), 0);
  bool agrees = true;
  std::error_code ignored;
  agrees = read_lines(list_.path(),
                      [&](const nlohmann::json& one) {
                        const auto file = one.value(kFile, nlohmann::json());
                        const auto found =
                            file.is_string() ? index_.find(file.get_ref<const std::string&>()) : index_.end();
                        const bool is_listed = found != index_.end() && !there[found->second] &&
                                               fs::is_regular_file(path(names_[found->second]), ignored) &&
                                               fs::file_size(path(names_[found->second]), ignored) > 0;
                        agrees = agrees && is_listed;
                        if (found != index_.end()) listed[found->second] = 1;
                        if (!is_listed) return;
                        const auto bytes = formats::read_file(path(names_[found->second]), ErrorKind::data);
                        const auto crc = formats::crc32(std::as_bytes(std::span(bytes)));
                        const bool is_same = one.value(kCrc, nlohmann::json()) == crc;
                        if (!is_same && !overwrite)
                          throw Error(ErrorKind::data, path(names_[found->second]),
                                      "is not the sample that was written there: it is damaged, or another program "
                                      "has changed it",
                                      "remove it, or add --overwrite: it is made again");
                        agrees = agrees && is_same;
                        there[found->second] = is_same;
                        crcs_[found->second] = crc;
                      }) == 0 &&
           agrees;
  for (size_t i = 0; i < names_.size(); ++i)
    if (!listed[i]) require_ours(names_[i]);
  for (size_t i = 0; i < names_.size(); ++i)
    if (!there[i]) fs::remove(path(names_[i]), ignored);
  if (!agrees) write_list(there);
  return there;
}

// Half files that a killed command left beside the names that they would have had.
void SampleFolder::remove_unfinished() const {
  std::set<fs::path> folders{fs::path()};
  for (const auto& name : names_) folders.insert(fs::path(name).parent_path());
  std::error_code ignored;
  for (const auto& folder : folders)
    for (const auto& entry : fs::directory_iterator(fs::path(folder_) / folder, ignored)) {
      const auto whole = (folder / unfinished(entry.path().filename().string())).string();
      if (index_.count(whole) || (folder.empty() && (is_sheet(whole) || whole == kList)))
        fs::remove(entry.path(), ignored);
    }
}

void SampleFolder::tell_unlisted(const std::function<void(const std::string&)>& tell) const {
  int64_t count = 0;
  std::string first;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder_, ignored)) {
    const auto name = entry.path().filename().string();
    if (!is_picture(entry.path()) || is_sheet(name) || index_.count(name)) continue;
    if (++count == 1 || name < first) first = name;
  }
  if (count > 0)
    tell(fmt::format("--out {}: holds {} picture{} already that no {} names ({}), and {} among the new ones", folder_,
                     count, count == 1 ? "" : "s", kList, first, count == 1 ? "it stays" : "they stay"));
}

void SampleFolder::add(size_t i, std::span<const std::byte> bytes) {
  formats::write_file(path(names_[i]), bytes, ErrorKind::data);
  auto one = line(i);
  one[kCrc] = formats::crc32(bytes);
  list_.append(formats::ascii_json(one, -1) + '\n');
}

void SampleFolder::write_list(const std::vector<uint8_t>& there) const {
  const auto beside = list_.path() + kBeside + std::to_string(::getpid());
  std::ofstream file(beside, std::ios::binary | std::ios::trunc);
  for (size_t i = 0; i < names_.size(); ++i)
    if (there[i]) {
      auto one = line(i);
      one[kCrc] = crcs_[i];
      file << formats::ascii_json(one, -1) << '\n';
    }
  file.close();
  if (file && std::rename(beside.c_str(), list_.path().c_str()) == 0) return;
  const std::string why = std::strerror(errno);
  std::remove(beside.c_str());
  throw Error(ErrorKind::data, list_.path(), "cannot be written: " + why);
}

void SampleFolder::finish() {
  read_lines(list_.path(), [&](const nlohmann::json& one) {  // of all ranks
    const auto file = one.value(kFile, nlohmann::json());
    const auto found = file.is_string() ? index_.find(file.get_ref<const std::string&>()) : index_.end();
    if (found != index_.end()) crcs_[found->second] = one.value(kCrc, uint32_t{0});
  });
  write_list(std::vector<uint8_t>(names_.size(), 1));
}

}  // namespace ditto
