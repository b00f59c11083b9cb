// Pictures and videos, as files or folders of frames, that a table names: rows with path, class, caption, frames,
// interval.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>
#include <filesystem>
#include <future>
#include <mutex>
#include <optional>

#include <ATen/Functions.h>

#include <ditto/data.h>
#include <ditto/error.h>
#include <ditto/math/pictures.h>

#include <ditto/formats/file.h>
#include <ditto/formats/picture.h>
#include <ditto/formats/video_name.h>
#include "rows.h"

namespace {

namespace fs = std::filesystem;
namespace formats = ditto::formats;
using ditto::Error;
using ditto::ErrorKind;
using ditto::Sample;
using table::kNone;
using table::Row;

constexpr std::uint64_t kEndBytes = 4 << 10, kVideoEndBytes = 64 << 10;

class Table final : public ditto::Source {
 public:
  using Options = table::Options;

  Table(const Options& options, const Needs& needs) : options_(options), sizes_(options.all_sizes()) {
    if (needs.shapes_only) return;
    const bool training = needs.split == ditto::SplitOf::train;
    const auto& given = training ? options.table : options.validation_table;
    if (given.empty())
      throw Error(ErrorKind::config, training ? "data.table" : "data.validation_table", "names no table",
                  "name a .csv, .tsv or .jsonl file");
    const auto path = (fs::path(needs.folder) / given).lexically_normal();
    const auto folder = options.folder.empty() ? path.parent_path() : fs::path(needs.folder) / options.folder;
    if (!options.folder.empty())
      ditto::formats::require_there(folder.string(), "set data.folder to where the rows' paths begin");
    rows_.emplace(options, path.string(), folder.lexically_normal().string(), needs);
  }

  int64_t size() const override { return static_cast<int64_t>(rows_->count()); }
  std::vector<std::string> warnings() const override { return rows_->warnings(); }
  std::vector<std::string> notes() const override { return rows_->notes(); }
  std::vector<std::string> holds() const override { return rows_->holds(); }

  ditto::TensorSpecs makes() const override {
    const bool one_size = options_.sizes.empty();
    std::vector<int64_t> shape{options_.channels, one_size ? sizes_.front().height : ditto::kOwnSide,
                               one_size ? sizes_.front().width : ditto::kOwnSide};
    if (options_.has_videos()) shape.insert(shape.begin() + 1, ditto::kOwnSide);
    ditto::TensorSpecs out{{"image", at::kFloat, shape, "-1 … 1"}};
    if (options_.label != kNone)
      out.push_back(
          {"label", at::kLong, {}, "0 … " + std::to_string(options_.classes - 1), options_.classes, options_.names});
    if (options_.caption != kNone) out.push_back({"caption", at::kByte, {-1}, "UTF-8"});
    return out;
  }

  ditto::SampleInfo info(int64_t index) const override {
    const auto& row = row_at(index);
    std::vector<int64_t> shape{options_.channels, sizes_[row.size].height, sizes_[row.size].width};
    if (options_.has_videos()) shape.insert(shape.begin() + 1, row.frames);
    ditto::SampleInfo shapes{{"image", shape}};
    if (options_.label != kNone) shapes["label"] = {};
    if (options_.caption != kNone) shapes["caption"] = {static_cast<int64_t>(rows_->caption(row).size())};
    return shapes;
  }

  Sample read(int64_t index) const override {
    const auto& row = row_at(index);
    Sample sample;
    sample.place = rows_->place(row);
    sample.tensors["image"] =
        options_.has_videos() ? video(row, sample.place) : picture(row, rows_->path(row), sample.place);
    if (options_.label != kNone) sample.tensors["label"] = torch::scalar_tensor(row.label, torch::kLong);
    if (options_.caption != kNone) {
      const auto text = rows_->caption(row);
      auto bytes = torch::empty({static_cast<int64_t>(text.size())}, torch::kByte);
      std::memcpy(bytes.data_ptr(), text.data(), text.size());
      sample.tensors["caption"] = bytes;
    }
    return sample;
  }

  std::string fingerprint() const override {
    std::call_once(fingerprinted_, [this] {
      std::string text = "table 1 " + std::to_string(options_.channels) + ' ' + options_.label + ' ' +
                         options_.caption + ' ' + options_.frames;
      for (const auto& size : sizes_) text += ' ' + std::to_string(size.height) + 'x' + std::to_string(size.width);
      // Each part came later than those before it, by which checkpoints of then know the data again.
      fingerprint_ = std::to_string(size()) + " samples, " + hash_of(text + rows_->text()) + ", contents " +
                     contents() + ", files " + files();
    });
    return fingerprint_;
  }

 private:
  const Row& row_at(int64_t index) const { return rows_->row(static_cast<size_t>(index)); }

  static std::string hash_of(const std::string& text) {
    char hex[17];
    std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(XXH3_64bits(text.data(), text.size())));
    return hex;
  }

  // Of up to 64 files, evenly spread from the first to the last; of a folder of frames all names and sizes, and what
  // its first and last frame hold.
  std::string contents() const {
    const int64_t parts = std::min<int64_t>(size(), 64);
    std::string hashes;
    for (int64_t part = 0; part < parts; ++part) {
      const auto& row = row_at(parts == 1 ? 0 : (size() - 1) * part / (parts - 1));
      try {
        auto file = rows_->path(row);
        if (table::is_folder(file)) {
          const auto frames = table::frame_files(file, file);
          for (const auto& frame : frames)
            hashes += fs::path(frame).filename().string() + ' ' +
                      std::to_string(formats::RandomFile::open(frame)->size()) + ' ';
          hashes += hash_of(formats::read_file(frames.back(), ErrorKind::data, formats::limits::kMemberBytes));
          file = frames.front();
        }
        if (options_.has_videos() && formats::is_video_name(file))
          hashes += ends_of(file, kVideoEndBytes);
        else
          hashes += hash_of(formats::read_file(file, ErrorKind::data, formats::limits::kMemberBytes));
      } catch (const Error&) {
        hashes += " not there";
      }
    }
    return hash_of(hashes);
  }

  // Of every file, and every frame of a folder: name, size, first and last 4 KiB. Threads wait for the disk together.
  std::string files() const {
    constexpr int64_t kThreads = 16;
    std::vector<std::string> hashes(static_cast<size_t>(size()));
    std::vector<std::future<void>> readers;
    for (int64_t first = 0; first < std::min(kThreads, size()); ++first)
      readers.push_back(std::async(std::launch::async, [&, first] {
        for (int64_t i = first; i < size(); i += kThreads) hashes[static_cast<size_t>(i)] = ends_of(row_at(i));
      }));
    for (auto& reader : readers) reader.get();
    std::string all;
    for (const auto& hash : hashes) all += hash + ' ';
    return hash_of(all);
  }

  std::string ends_of(const Row& row) const {
    try {
      const auto path = rows_->path(row);
      if (!table::is_folder(path)) return ends_of(path, kEndBytes);
      std::string hashes;
      for (const auto& frame : table::frame_files(path, path))
        hashes += fs::path(frame).filename().string() + ' ' + ends_of(frame, kEndBytes) + ' ';
      return hash_of(hashes);
    } catch (const Error&) {
      return "not there";
    }
  }

  static std::string ends_of(const std::string& path, std::uint64_t most) {
    const auto file = formats::RandomFile::open(path);
    const auto bytes = std::min(file->size(), most);
    std::string hashes = std::to_string(file->size());
    for (const auto offset : {std::uint64_t{0}, file->size() - bytes}) {
      const auto part = file->read(offset, bytes);
      hashes += hash_of({reinterpret_cast<const char*>(part.data()), part.size()});
    }
    return hashes;
  }

  torch::Tensor picture(const Row& row, const std::string& path, const std::string& place) const {
    if (formats::is_video_name(path))
      throw Error(ErrorKind::data, place, "is a video file, and all rows are pictures",
                  "name in data.frames the column that says how many frames are taken");
    const auto bytes = formats::read_file(path, ErrorKind::data, formats::limits::kMemberBytes);
    const auto channels = options_.channels == 1 ? formats::Channels::grey : formats::Channels::rgb;
    const auto decoded = formats::decode_picture(std::as_bytes(std::span(bytes)), place, {.channels = channels});
    return resized(row, decoded.pixels, decoded.height, decoded.width);
  }

  torch::Tensor resized(const Row& row, std::span<const std::uint8_t> pixels, int64_t height, int64_t width) const {
    return ditto::crop_and_resize(ditto::image_of_pixels(pixels, height, width, options_.channels),
                                  sizes_[row.size].height, sizes_[row.size].width);
  }

  torch::Tensor video_file(const Row& row, const std::string& path, const std::string& place) const {
    std::vector<torch::Tensor> frames;
    rows_->video_files()
        .open(path, place)
        ->decode({row.first, row.frames, row.interval}, [&](const ditto::VideoFrame& frame) {
          if (options_.channels == 3) return frames.push_back(resized(row, frame.pixels, frame.height, frame.width));
          formats::Picture picture{static_cast<int>(frame.width),
                                   static_cast<int>(frame.height),
                                   3,
                                   {frame.pixels.begin(), frame.pixels.end()}};
          formats::convert(picture, formats::Channels::grey);
          frames.push_back(resized(row, picture.pixels, frame.height, frame.width));
        });
    return at::stack(frames, 1);
  }

  // [C, T, H, W]: from frame `first` on, every `interval`-th; of a picture, that.
  torch::Tensor video(const Row& row, const std::string& place) const {
    const auto path = rows_->path(row);
    if (!table::is_folder(path)) {
      if (formats::is_video_name(path)) return video_file(row, path, place);
      if (row.frames == 1 && row.first == 0) return picture(row, path, place).unsqueeze(1);
      throw Error(ErrorKind::data, place,
                  "is no folder and no video file, and " + std::to_string(row.frames) + " frames are to be taken of it",
                  "name a video file (.mp4, .mov, .mkv, .webm, .avi, .mpg, .ts), or a folder with a picture a frame");
    }
    const auto files = table::frame_files(path, place);
    const auto last = row.first + (row.frames - 1) * row.interval;
    if (last >= static_cast<int64_t>(files.size()))
      throw Error(ErrorKind::data, place,
                  "has " + std::to_string(files.size()) + " frames; " + std::to_string(row.frames) + " of them, each " +
                      std::to_string(row.interval) + " further" +
                      (row.first > 0 ? " from frame " + std::to_string(row.first) + " on" : "") + ", need " +
                      std::to_string(last + 1));
    std::vector<torch::Tensor> frames;
    for (int64_t i = 0; i < row.frames; ++i) {
      const auto& file = files[static_cast<size_t>(row.first + i * row.interval)];
      frames.push_back(picture(row, file, place + "/" + fs::path(file).filename().string()));
    }
    return at::stack(frames, 1);
  }

  Options options_;
  std::vector<table::Size> sizes_;
  std::optional<table::Rows> rows_;
  mutable std::once_flag fingerprinted_;
  mutable std::string fingerprint_;
};

}  // namespace

DITTO_PLUGIN(Source, Table, "table", "1.0.0", "Apache-2.0",
             "pictures and videos, as files or folders of frames, that a CSV or JSON Lines table names")
