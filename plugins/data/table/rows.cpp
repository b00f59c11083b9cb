#include "rows.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <thread>
#include <unordered_map>

#include <ditto/error.h>
#include <ditto/text.h>

#include <ditto/formats/file.h>
#include <ditto/formats/junk_name.h>
#include <ditto/formats/names.h>
#include <ditto/formats/picture.h>
#include <ditto/formats/utf8.h>
#include <ditto/formats/video_name.h>

namespace table {

namespace {

namespace fs = std::filesystem;
namespace formats = ditto::formats;
using ditto::Error;
using ditto::ErrorKind;

constexpr std::size_t kNamed = 10;   // bad rows whose names are said
constexpr std::size_t kThreads = 8;  // mostly waiting for the disk
constexpr std::size_t kAtOnce = 64;  // rows that a thread takes
constexpr int64_t kMostFrames = 1'000'000;

double proportions(const Size& size) {
  return std::log(static_cast<double>(size.width) / static_cast<double>(size.height));
}

// The wanted size nearest in proportions, which `wanted` has of each; of several alike the largest that needs no
// enlarging, else the smallest.
std::size_t nearest_size(const std::vector<Size>& sizes, const std::vector<double>& wanted, const Size& stored) {
  const double own = proportions(stored);
  const auto area = [](const Size& size) { return size.height * size.width; };
  const auto better = [&](std::size_t a, std::size_t b) {
    const double a_off = std::abs(wanted[a] - own), b_off = std::abs(wanted[b] - own);
    if (a_off != b_off) return a_off < b_off;
    const auto a_area = area(sizes[a]), b_area = area(sizes[b]);
    const bool a_fits = a_area <= area(stored), b_fits = b_area <= area(stored);
    return a_fits != b_fits ? a_fits : a_fits ? a_area > b_area : a_area < b_area;
  };
  std::size_t best = 0;
  for (std::size_t i = 1; i < sizes.size(); ++i)
    if (better(i, best)) best = i;
  return best;
}

}  // namespace

Rows::Rows(const Options& options, const std::string& table, const std::string& folder,
           const ditto::Source::Needs& needs)
    : options_(options),
      table_(table),
      folder_(folder),
      columns_(options.columns()),
      least_(options.limits(true)),
      most_(options.limits(false)),
      cells_(formats::read_text_table(table, columns_)) {
  read_rows();
  check_labels();
  if (options_.has_videos() &&
      std::any_of(rows_.begin(), rows_.end(), [&](const Row& row) { return formats::is_video_name(path(row)); }))
    video_files_ = VideoFiles(options_.decoder, needs);
  if (!options_.sizes.empty()) choose_sizes();
  if (rows_.empty())
    throw Error(ErrorKind::data, table_,
                "none of its " + std::to_string(cells_.rows() + cells_.bad_rows) + " rows is left to learn from" +
                    (warnings_.empty() ? "" : " (" + warnings_.front() + ")"),
                "correct the table, or take more of it by data.at_least and data.at_most");
}

void Rows::read_rows() {
  std::size_t bad = cells_.bad_rows;
  for (std::size_t i = 0; i < std::min(kNamed, cells_.bad.size()); ++i)
    warnings_.push_back(table_ + ":" + std::to_string(cells_.bad[i].line) + ": " + cells_.bad[i].what);
  for (std::size_t number = 0; number < cells_.rows(); ++number) {
    try {
      if (cell(number, options_.path).empty()) throw Error(ErrorKind::data, line(number), "has no " + options_.path);
      if (!is_taken(number)) continue;
      Row row{number};
      if (options_.label != kNone) row.label = label_in(number);
      row.frames = count_in(number, options_.frames, 1, 1);
      row.interval = count_in(number, options_.interval, 1, 1);
      row.first = count_in(number, options_.first, 0, 0);
      rows_.push_back(row);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::config) throw;
      if (bad++ < kNamed) warnings_.emplace_back(error.what());
    }
  }
  if (bad > 0)
    warnings_.push_back(table_ + ": " + formats::counted(bad, "bad row") + (bad == 1 ? " is" : " are") + " left out");
}

void Rows::check_labels() const {
  if (options_.label == kNone) return;
  const auto too_large = [&](const Row& row) { return row.label >= options_.classes; };
  const auto count = std::count_if(rows_.begin(), rows_.end(), too_large);
  if (count == 0) return;
  const auto& first = *std::find_if(rows_.begin(), rows_.end(), too_large);
  throw Error(ErrorKind::config, "data.classes",
              "is " + std::to_string(options_.classes) + ", which allows labels 0 to " +
                  std::to_string(options_.classes - 1) + ", but " + std::to_string(count) + " of " +
                  std::to_string(rows_.size()) + " are larger; the first: " + line(first.number) + " is " +
                  std::to_string(first.label),
              "set it to the number of classes, or correct the labels");
}

std::string Rows::line(std::size_t number) const { return table_ + ":" + std::to_string(cells_.lines[number]); }

std::string_view Rows::cell(std::size_t number, const std::string& column) const {
  const auto at = std::find(columns_.begin(), columns_.end(), column);
  return at == columns_.end() ? std::string_view{} : cells_.at(number, static_cast<std::size_t>(at - columns_.begin()));
}

double Rows::number_in(std::size_t number, const std::string& column) const {
  const auto text = cell(number, column);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size() || !std::isfinite(value))
    throw Error(ErrorKind::data, line(number),
                ditto::shown(column, 60) + " is \"" + ditto::shown(text, 40) + "\"; expected a number");
  return value;
}

int64_t Rows::count_in(std::size_t number, const std::string& column, int64_t least, int64_t fallback) const {
  if (column == kNone || cell(number, column).empty()) return fallback;
  const double value = number_in(number, column);
  if (value < static_cast<double>(least) || value > static_cast<double>(kMostFrames) || value != std::floor(value))
    throw Error(ErrorKind::data, line(number),
                ditto::shown(column, 60) + " is " + ditto::shown(cell(number, column), 40) +
                    "; expected a whole number, " + std::to_string(least) + " to " + std::to_string(kMostFrames));
  return static_cast<int64_t>(value);
}

int64_t Rows::label_in(std::size_t number) const {
  const auto text = cell(number, options_.label);
  const auto& names = options_.names;
  if (const auto at = std::find(names.begin(), names.end(), text); at != names.end()) {
    if (std::find(at + 1, names.end(), text) == names.end()) return at - names.begin();
    throw Error(ErrorKind::data, line(number),
                ditto::shown(options_.label, 60) + " is \"" + ditto::shown(text, 40) +
                    "\", which data.names has more than once",
                "give each class a name of its own, or labels as numbers");
  }
  int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size() || value < 0)
    throw Error(ErrorKind::data, line(number),
                ditto::shown(options_.label, 60) + " is \"" + ditto::shown(text, 40) + "\"; expected " +
                    (names.empty() ? "" : "one of data.names, or ") + "an integer, 0 or more");
  // Else "1" would be the class of that name, and "0", which is none's, the first of them all.
  const auto is_number = [](const std::string& name) { return formats::number_of_name(name).has_value(); };
  if (const auto at = std::find_if(names.begin(), names.end(), is_number); at != names.end())
    throw Error(ErrorKind::config, line(number),
                ditto::shown(options_.label, 60) + " is " + std::to_string(value) +
                    ", which is none of data.names, and these call classes by numbers (\"" + ditto::shown(*at, 40) +
                    "\")",
                "give every label as a name, or leave data.names out where labels are numbers of classes");
  return value;
}

bool Rows::is_taken(std::size_t number) const {
  return std::all_of(least_.begin(), least_.end(),
                     [&](const Limit& limit) { return number_in(number, limit.column) >= limit.value; }) &&
         std::all_of(most_.begin(), most_.end(),
                     [&](const Limit& limit) { return number_in(number, limit.column) <= limit.value; });
}

// Of the picture as it is stored, of a video as its first frame is.
Size Rows::stored_size(const Row& row) const {
  if (options_.height != kNone) {
    const Size size{count_in(row.number, options_.height, 0, 0), count_in(row.number, options_.width, 0, 0)};
    if (size.height < 1 || size.width < 1) throw Error(ErrorKind::data, line(row.number), "has no height and width");
    return size;
  }
  auto file = path(row);
  if (options_.has_videos() && formats::is_video_name(file) && !is_folder(file)) {
    const auto video = video_files_.open(file, place(row));
    return {video->height(), video->width()};
  }
  if (is_folder(file)) file = frame_files(file, place(row)).front();
  const auto bytes = formats::read_file(file, ErrorKind::data, formats::limits::kMemberBytes);
  const auto picture = formats::picture_size(std::as_bytes(std::span(bytes)), place(row));
  return {picture.height, picture.width};
}

void Rows::choose_sizes() {
  const auto sizes = options_.all_sizes();
  std::vector<std::string> bad(rows_.size());
  std::vector<double> wanted;
  for (const auto& size : sizes) wanted.push_back(proportions(size));
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t begin; (begin = next.fetch_add(kAtOnce)) < rows_.size();)
      for (std::size_t i = begin; i < std::min(begin + kAtOnce, rows_.size()); ++i) {
        try {
          rows_[i].size = nearest_size(sizes, wanted, stored_size(rows_[i]));
        } catch (const std::exception& error) {
          bad[i] = error.what();
        }
      }
  };
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 1; i < std::min(kThreads, rows_.size()); ++i) threads.emplace_back(work);
    work();
  }
  std::size_t named = 0, all = 0;
  for (const auto& what : bad)
    if (!what.empty() && ++all && named++ < kNamed) warnings_.push_back(what);
  if (all == 0) return;
  warnings_.push_back(table_ + ": " + std::to_string(all) + " rows whose pictures' sizes cannot be read are left out");
  std::size_t at = 0;
  std::erase_if(rows_, [&](const Row&) { return !bad[at++].empty(); });
}

std::string Rows::path(const Row& row) const {
  return (fs::path(folder_) / cell(row.number, options_.path)).lexically_normal().string();
}

std::string Rows::caption(const Row& row) const {
  return formats::plain_text(cell(row.number, options_.caption), line(row.number));
}

std::string Rows::place(const Row& row) const {
  return fs::path(table_).filename().string() + ":" + std::to_string(cells_.lines[row.number]) + ":" +
         std::string(cell(row.number, options_.path));
}

std::string Rows::text_of(const Row& row) const {
  auto text = std::string(cell(row.number, options_.path)) + '\t' + std::string(cell(row.number, options_.caption));
  for (const int64_t number : {row.label, row.frames, row.interval, static_cast<int64_t>(row.size)})
    text += '\t' + std::to_string(number);
  return options_.first == kNone ? text : text + '\t' + std::to_string(row.first);
}

std::string Rows::text() const {
  std::string text;
  for (const auto& row : rows_) text += '\n' + text_of(row);
  return text;
}

// A frame of a video is held by its number, since rows may take different ones of the same file.
std::vector<std::string> Rows::holds() const {
  std::vector<std::string> all;
  for (const auto& row : rows_) {
    const auto file = path(row);
    if (!options_.has_videos() || !(is_folder(file) || formats::is_video_name(file))) {
      all.push_back(file);
      continue;
    }
    std::vector<std::string> frames;
    if (is_folder(file)) try {
        frames = frame_files(file, file);
      } catch (const Error&) {  // a bad sample once it is read
      }
    for (int64_t i = 0; i < row.frames; ++i) {
      const auto number = static_cast<std::size_t>(row.first + i * row.interval);
      all.push_back(number < frames.size() ? frames[number] : file + '#' + std::to_string(number));
    }
  }
  return all;
}

// A column that says of each row what part of the set it is, where the recipe does not choose by it.
std::string Rows::part_in_a_column() const {
  constexpr std::array<std::string_view, 5> kWhole{"set", "fold", "part", "phase", "usage"};
  for (const auto& column : cells_.columns) {
    std::string name;
    for (const char c : column)
      if (c != ' ') name += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    const auto has = [&](const char* word) { return name.find(word) != std::string::npos; };
    const bool may_say = has("split") || has("subset") || has("partition") ||
                         std::find(kWhole.begin(), kWhole.end(), name) != kWhole.end();
    if (!may_say || std::count(columns_.begin(), columns_.end(), column) > 0) continue;
    const auto values = formats::read_text_table(table_, {column});
    formats::PartsSeen parts;
    for (std::size_t i = 0; i < values.rows(); ++i) parts.add(std::string(values.at(i, 0)) + '/');
    if (!parts.sentence().empty())
      return "the column " + ditto::shown(column, 60) +
             " says which rows are held out, and all of them are learned from: put those into data.validation_table";
  }
  return {};
}

std::vector<std::string> Rows::notes() const {
  std::vector<std::string> all;
  formats::PartsSeen parts;
  for (const auto& row : rows_) parts.add(cell(row.number, options_.path));
  for (auto& note : {parts.sentence(), part_in_a_column(), rows_twice()})
    if (!note.empty()) all.push_back(note);
  return all;
}

// Several captions of a picture are usual; the same row twice is not.
std::string Rows::rows_twice() const {
  std::unordered_map<std::string, std::size_t> seen;
  std::size_t many = 0;
  std::string first;
  for (const auto& row : rows_) {
    const auto [before, is_new] =
        seen.emplace(path(row) + '\n' + text_of(row).substr(cell(row.number, options_.path).size()), row.number);
    if (!is_new && many++ == 0) first = line(before->second) + " and " + line(row.number);
  }
  if (many == 0) return {};
  return std::to_string(many) + " rows are the same as others, and come as often (" + first + ")";
}

bool is_folder(const std::string& path) {
  std::error_code failed;
  return fs::is_directory(path, failed);
}

std::vector<std::string> frame_files(const std::string& folder, const std::string& place) {
  std::vector<std::string> files;
  std::error_code failed;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    const auto name = at->path().filename().string();
    auto extension = at->path().extension().string();
    for (char& c : extension)
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    if (formats::is_junk_name(name)) continue;
    for (const char* known : {".png", ".jpg", ".jpeg", ".jfif", ".webp", ".avif"})
      if (extension == known) files.push_back(at->path().string());
    for (const char* other : {".bmp", ".gif", ".tif", ".tiff", ".jxl", ".heic", ".heif"})
      if (extension == other)
        throw Error(ErrorKind::data, place,
                    "holds " + ditto::shown(name, 60) + ", a picture that is not read as a frame",
                    "make it a PNG, JPEG, WebP or AVIF, as the others are, or take it away");
  }
  if (failed) throw Error(ErrorKind::data, place, "cannot be listed: " + failed.message());
  if (files.empty())
    throw Error(ErrorKind::data, place, "is a folder without pictures", "put a PNG, JPEG, WebP or AVIF a frame there");
  std::sort(files.begin(), files.end(),
            [](const auto& a, const auto& b) { return ::strverscmp(a.c_str(), b.c_str()) < 0; });
  return files;
}

}  // namespace table
