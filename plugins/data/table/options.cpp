#include "options.h"

#include <algorithm>
#include <charconv>

#include <ditto/error.h>
#include <ditto/math/sizes.h>
#include <ditto/text.h>

namespace table {

namespace {

Limit limit_of(const std::string& text) {
  const auto at = text.rfind('=');
  double value = 0;
  const auto* end = text.data() + text.size();
  const auto read = at == std::string::npos ? std::from_chars_result{end, std::errc::invalid_argument}
                                            : std::from_chars(text.data() + at + 1, end, value);
  return read.ec == std::errc{} && read.ptr == end && at > 0 ? Limit{text.substr(0, at), value} : Limit{};
}

bool is_size(const std::vector<int64_t>& sides) {
  return sides.size() == 2 &&
         std::all_of(sides.begin(), sides.end(), [](int64_t side) { return side >= 1 && side <= ditto::most::kSide; });
}

}  // namespace

void Options::read(ditto::OptionReader& option) {
  option("table", table, "rows to train on: .csv, .tsv or .jsonl, with .gz behind it where it is gzip").place();
  option("validation_table", validation_table, "rows held out").place();
  option("folder", folder, "where the rows' paths begin; empty: beside the table").place();
  option("path", path, "the column of a row's picture; of a video, a video file or a folder with a picture a frame");
  option("label", label, "the column of its class, a number or one of data.names, or \"none\"");
  option("caption", caption, "the column of its caption, or \"none\"");
  option("frames", frames, "the column that says how many frames are taken, or \"none\": all rows are pictures");
  option("interval", interval, "the column that says how many frames further the next one taken is, or \"none\": 1");
  option("first", first, "the column that says which frame is the first taken, counted from 0, or \"none\": 0");
  option("decoder", decoder, "the plugin that decodes video files");
  option("height", height, "the column of pictures' rows; \"none\": with data.sizes, each picture's header is read");
  option("width", width, "and of their columns");
  option("at_least", at_least, "rows taken: [\"COLUMN=NUMBER\"], each the least that this column holds");
  option("at_most", at_most, "and the most");
  option("classes", classes, "number of classes; labels are 0 to classes - 1").between(0, ditto::most::kClasses);
  option("names", names, "the classes' names, in the order of their labels: as many as data.classes, or none");
  option("size", size, "[height, width] to crop (centre) and resize to");
  option("sizes", sizes,
         "instead of it several, as [\"32x48\", \"48x32\"]: each picture becomes the one nearest to its proportions");
  option("channels", channels, "3 (red, green, blue) or 1 (grey); pictures are converted").one_of({1, 3});

  if (!size.empty() && !sizes.empty())
    option.reject("sizes", "stands beside data.size", "set data.size = [height, width], or data.sizes for several");
  if (!size.empty() && !is_size(size))
    option.reject("size", "is " + ditto::to_text(ditto::OptionValue(size)),
                  "expected [height, width], each at most " + std::to_string(ditto::most::kSide));
  for (const auto& one : sizes)
    if (!is_size(ditto::sides_of(one)))
      option.reject("sizes", "has \"" + one + "\", which is no size",
                    "write rows x columns, each at most " + std::to_string(ditto::most::kSide) + ": \"32x48\"");
  for (const bool least : {true, false})
    for (const auto& one : least ? at_least : at_most)
      if (limit_of(one).column.empty())
        option.reject(least ? "at_least" : "at_most", "has \"" + one + "\"", "write \"COLUMN=NUMBER\"");
  if (classes == 0) classes = static_cast<int64_t>(names.size());
  if (!names.empty() && static_cast<int64_t>(names.size()) != classes)
    option.reject("names",
                  "names " + std::to_string(names.size()) + " classes, and data.classes is " + std::to_string(classes),
                  "name each of them once, or none");
  if (label != kNone && classes < 1)
    option.reject("classes", "is 0, but data.label is \"" + label + "\"",
                  "set it to the number of classes, or name them in data.names");
  if (path == kNone) option.reject("path", "is \"none\"", "name the column of the pictures' paths");
  for (const bool is_first : {true, false})
    if ((is_first ? first : interval) != kNone && frames == kNone)
      option.reject(is_first ? "first" : "interval", "goes with data.frames",
                    "name the column that says how many frames are taken");
  option.only_if(frames != kNone, {"decoder"}, "is of video files, and data.frames names no column");
  option.only_if(!sizes.empty(), {"height", "width"},
                 "says which of data.sizes a picture is near to, and there are none");
  if ((height == kNone) != (width == kNone))
    option.reject(height == kNone ? "height" : "width", "is \"none\" and the other side is not", "name both, or none");
}

std::vector<Size> Options::all_sizes() const {
  if (size.empty() && sizes.empty())
    throw ditto::Error(ditto::ErrorKind::config, "data.size", "is not there",
                       "set data.size = [height, width], or data.sizes for several");
  if (sizes.empty()) return {{size[0], size[1]}};
  std::vector<Size> all;
  for (const auto& one : sizes) {
    const auto sides = ditto::sides_of(one);
    all.push_back({sides[0], sides[1]});
  }
  return all;
}

std::vector<Limit> Options::limits(bool least) const {
  std::vector<Limit> all;
  for (const auto& one : least ? at_least : at_most) all.push_back(limit_of(one));
  return all;
}

std::vector<std::string> Options::columns() const {
  std::vector<std::string> all{path};
  const auto add = [&](const std::string& name) {
    if (name != kNone && std::find(all.begin(), all.end(), name) == all.end()) all.push_back(name);
  };
  for (const auto* name : {&label, &caption, &frames, &interval, &first, &height, &width}) add(*name);
  for (const bool least : {true, false})
    for (const auto& limit : limits(least)) add(limit.column);
  return all;
}

}  // namespace table
