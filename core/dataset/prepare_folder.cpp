#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>

#include <ditto/error.h>
#include <ditto/options.h>
#include <ditto/text.h>

#include "core/data/cut_off.h"
#include "core/dataset/in_order.h"
#include "core/dataset/masks.h"
#include "core/dataset/picture_folder.h"
#include "core/dataset/picture_notes.h"
#include "core/dataset/prepare.h"
#include "core/dataset/shard_writer.h"
#include "core/dataset/split_folders.h"
#include "core/formats/file.h"
#include "core/formats/limits.h"
#include "core/formats/names.h"
#include "core/formats/picture/picture.h"
#include "core/formats/picture/picture_resize.h"
#include "core/formats/text/json.h"
#include "core/formats/text/utf8.h"
#include "core/measure/processors.h"

namespace ditto {

namespace {

namespace fs = std::filesystem;
using formats::PictureFormat;
using formats::limits::kMiB;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// The extension a shard gives a picture: what its bytes are, not what its name says. Empty: shards hold it as a PNG.
std::string extension_of(PictureFormat format) {
  switch (format) {
    case PictureFormat::png: return "png";
    case PictureFormat::jpeg: return "jpg";
    case PictureFormat::webp: return "webp";
    case PictureFormat::avif: return "avif";
    default: return {};
  }
}

// The subfolder a picture is in, directly under `folder`; "" for a picture in `folder` itself.
std::string class_of(const fs::path& picture, const fs::path& folder) {
  const auto relative = picture.lexically_relative(folder);
  return relative.has_parent_path() ? relative.begin()->string() : std::string();
}

std::string said_of(const fs::path& path, const Error& error) {
  std::string text = error.what();
  if (const auto before = shown(path.string()) + ": "; text.starts_with(before)) text.erase(0, before.size());
  return text;
}

// What threads hold at once while they decode.
class Memory {
 public:
  explicit Memory(std::uint64_t bytes) : all_(bytes), free_(bytes) {}
  class Held {
   public:
    Held(Memory& memory, std::uint64_t bytes) : memory_(memory), bytes_(std::min(bytes, memory.all_)) {
      std::unique_lock lock(memory_.mutex_);
      memory_.changed_.wait(lock, [&] { return memory_.free_ >= bytes_; });
      memory_.free_ -= bytes_;
    }
    ~Held() {
      const std::lock_guard lock(memory_.mutex_);
      memory_.free_ += bytes_;
      memory_.changed_.notify_all();
    }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

   private:
    Memory& memory_;
    std::uint64_t bytes_;
  };

 private:
  const std::uint64_t all_;
  std::uint64_t free_;
  std::mutex mutex_;
  std::condition_variable changed_;
};

// A picture ready for its shard.
struct Ready {
  std::string extension, caption;
  std::string bytes;
  bool enlarged = false;
  double cut = 0;  // share of its longer side that is beyond the shorter one, where it is made square
  std::optional<Error> bad;
};

// As large as the file, times what its pixels take in all. A file that is large itself is read with nothing beside it.
constexpr std::uint64_t kFileBesideOthers = 32 * kMiB, kBytesAPixel = 7;

class FolderPreparer {
 public:
  FolderPreparer(const std::string& folder, const PrepareOptions& options, const FolderOptions& pictures)
      : folder_(folder),
        options_(options),
        pictures_(pictures),
        threads_(pictures.threads > 0 ? pictures.threads : static_cast<unsigned>(report::usable_processors())),
        memory_(formats::limits::kPictureBytes + static_cast<std::uint64_t>(threads_) * kFileBesideOthers / 2),
        found_(pictures_under(folder)) {
    if (pictures.size < 0 || pictures.size > kMostSide)
      throw Error(ErrorKind::config, "--size", "is " + std::to_string(pictures.size),
                  "expected 1 to " + std::to_string(kMostSide) + ", or 0 for pictures as they are");
    for (const auto& table : found_.tables) notes_.read(table.string(), table.parent_path());
    if (!pictures.captions.empty()) {
      notes_.read(pictures.captions, folder);
      notes_.require_captions(pictures.captions);
    }
    name_classes();
  }

  Prepared run() {
    ShardWriter writer(options_);
    const auto all = static_cast<int64_t>(found_.pictures.size());
    for (const auto& [path, reason, files] : found_.unreadable) {
      prepared_.bad.push_back(path.string() + ": " + reason);
      report(fs::path(folder_) / path, {{"outcome", "bad"}, {"reason", reason}});
    }
    in_order(
        all, threads_, [&](int64_t i) { return ready(found_.pictures[static_cast<size_t>(i)]); },
        [&](int64_t i, Ready made) {
          take(writer, found_.pictures[static_cast<size_t>(i)], std::move(made));
          if (options_.progress) options_.progress(i + 1, all);
        });
    if (!pictures_.skip_bad) refuse_bad();
    std::set<fs::path> captions(found_.tables.begin(), found_.tables.end());
    for (const auto& [picture, text] : found_.captions) captions.insert(text);
    for (const auto& file : captions) report(file, {{"outcome", "caption"}});
    for (const auto& one : found_.left_out) {
      nlohmann::ordered_json line{{"outcome", "left out"}, {"reason", one.reason}};
      if (one.files != 1) line["files"] = one.files;
      report(fs::path(folder_) / one.path, std::move(line));
    }
    if (taken_ == 0)
      throw Error(ErrorKind::data, folder_, "has no picture that decodes; the first: " + prepared_.bad.front());
    if (!classes_.empty())
      writer.add_file("classes.json",
                      nlohmann::json(names_).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    writer.add_file("report.jsonl", report_);
    auto made = writer.finish();
    made.classes = names_;
    made.left_out = sentences(found_.left_out);
    made.bad = std::move(prepared_.bad);
    made.notes = what_else();
    if (options_.validation > 0 && made.validation == 0)
      made.notes.push_back("no sample is held out: a share of " + to_text(OptionValue(options_.validation)) +
                           " of every class's samples, rounded down, is none");
    return made;
  }

 private:
  static constexpr int kMostSide = 16384;

  void name_classes() {
    if (!pictures_.splits_as_classes) refuse_split_folders(folder_, found_.pictures);
    for (const auto& picture : found_.pictures) ++classes_[class_of(picture, folder_)];
    if (const auto loose = classes_.find(""); loose != classes_.end() && classes_.size() > 1) {
      if (!pictures_.skip_bad) {
        const auto first = std::find_if(found_.pictures.begin(), found_.pictures.end(),
                                        [&](const auto& picture) { return class_of(picture, folder_).empty(); });
        throw loose_picture(*first);
      }
      classes_.erase(loose);
    }
    if (classes_.size() == 1 && classes_.count("") > 0) classes_.clear();
    for (auto& [name, number] : classes_) {
      number = static_cast<int64_t>(names_.size());
      names_.push_back(name);
    }
    counts_.resize(names_.size());
    choose_whose_share();
  }

  // Of classes with few pictures a share rounds down to none.
  void choose_whose_share() {
    std::map<std::string, std::int64_t> many;
    for (const auto& picture : found_.pictures) ++many[class_of(picture, folder_)];
    std::int64_t held_out = 0;
    for (const auto& [name, count] : many)
      held_out += static_cast<std::int64_t>(static_cast<double>(count) * options_.validation + 1e-9);
    shares_by_class_ = held_out >= options_.least_held_out;
  }

  static Error loose_picture(const fs::path& path) {
    return Error(ErrorKind::config, path.string(), "lies beside the folders of the classes, in none of them",
                 "move it into one, or name a folder without subfolders for pictures without labels");
  }

  // All at once: one after another would take a start each.
  void refuse_bad() const {
    const auto& bad = prepared_.bad;
    if (bad.empty()) return;
    std::vector<std::string> faults;  // without their own remedies: there is one for all
    for (const auto& one : bad) faults.push_back(one.substr(0, one.rfind("; ")));
    if (bad.size() > 1 && pictures_.tell_bad) pictures_.tell_bad(faults);
    const auto& first = faults.front();
    const bool has_folder = !found_.unreadable.empty();
    throw Error(ErrorKind::data, folder_,
                bad.size() == 1 ? (has_folder ? "a folder cannot be read: " : "a picture cannot be read: ") + first
                                : std::to_string(bad.size()) + (has_folder ? " pictures and folders" : " pictures") +
                                      " cannot be read, the first of them " + first,
                "mend or remove what is named, or leave it out: --skip-bad");
  }

  Ready ready(const fs::path& path) {
    try {
      if (!classes_.empty() && class_of(path, folder_).empty()) throw loose_picture(path);
      return decoded(path);
    } catch (const Error& error) {
      Ready bad;
      bad.bad = error;
      return bad;
    }
  }

  Ready decoded(const fs::path& path) {
    std::error_code none;
    const auto file_bytes = fs::file_size(path, none);
    const bool is_large = !none && file_bytes > kFileBesideOthers;
    std::optional<Memory::Held> held;
    if (is_large) held.emplace(memory_, file_bytes + formats::limits::kPictureBytes);
    Ready made;
    made.bytes = formats::read_file(path.string(), ErrorKind::data, formats::limits::kMemberBytes);
    made.caption = caption_of(path);
    const auto size = formats::picture_size(bytes_of(made.bytes), path.string());
    if (!is_large)
      held.emplace(memory_,
                   kBytesAPixel * static_cast<std::uint64_t>(size.width) * static_cast<std::uint64_t>(size.height));
    const int side = pictures_.size;
    formats::DecodeOptions options;
    options.covers = pictures_.fit == Fit::crop ? side : 0;
    // A shard never holds what a run could not read.
    auto picture = formats::decode_picture(bytes_of(made.bytes), path.string(), options);
    made.extension = extension_of(formats::sniff_picture(bytes_of(made.bytes)));
    const bool resizes = side > 0 && (size.width != side || size.height != side);
    if (!resizes && !made.extension.empty()) return made;
    const auto [shorter, longer] = std::minmax(size.width, size.height);
    made.enlarged = resizes && (pictures_.fit == Fit::pad ? longer : shorter) < side;
    if (resizes)  // padded, a row of pixels stays of the longest
      made.cut = 1 - std::max(static_cast<double>(shorter) / longer, pictures_.fit == Fit::pad ? 1.0 / side : 0.0);
    if (resizes) picture = fitted(std::move(picture));
    const auto png = formats::encode_png(picture);
    made.bytes.assign(reinterpret_cast<const char*>(png.data()), png.size());
    made.extension = "png";
    return made;
  }

  formats::Picture fitted(formats::Picture picture) const {
    const int side = pictures_.size;
    if (pictures_.fit == Fit::pad) return formats::pad(picture, side, side);
    if (pictures_.fit == Fit::stretch) return formats::stretch(picture, side, side);
    return formats::cover(std::move(picture), side, side);
  }

  // How a picture was made square, where that is no cut of it.
  void note_fit(const Ready& made, nlohmann::ordered_json& notes) const {
    if (made.cut > 0 && pictures_.fit != Fit::crop) notes["fit"] = pictures_.fit == Fit::pad ? "pad" : "stretch";
  }

  // The text beside the picture, else the table's.
  std::string caption_of(const fs::path& path) const {
    if (const auto it = found_.captions.find(path); it != found_.captions.end())
      return formats::plain_text(
          formats::read_file(it->second.string(), ErrorKind::data, formats::limits::kMemberBytes), it->second.string());
    const auto* notes = notes_.find(path);
    return notes ? formats::plain_text(PictureNotes::caption(*notes), path.string() + ": its caption") : "";
  }

  void take(ShardWriter& writer, const fs::path& path, Ready made) {
    if (made.bad) {
      prepared_.bad.push_back(path.lexically_relative(folder_).string() + ": " + said_of(path, *made.bad));
      report(path, {{"outcome", "bad"}, {"reason", said_of(path, *made.bad)}});
      return;
    }
    if (!pictures_.skip_bad && !prepared_.bad.empty()) return;  // it is refused, once all that is bad is known
    int64_t label = -1;
    nlohmann::ordered_json notes = nlohmann::ordered_json::object();
    if (const auto* fields = notes_.find(path)) notes.update(nlohmann::ordered_json::parse(fields->dump()));
    notes["file"] = path.lexically_relative(folder_).string();
    note_fit(made, notes);
    if (!classes_.empty()) {
      const auto name = class_of(path, folder_);
      notes["class"] = name;
      label = classes_.at(name);
      ++counts_[static_cast<size_t>(label)];
    }
    const auto label_text = std::to_string(label), notes_text = formats::ascii_json(notes, -1);
    std::vector<ShardWriter::Member> members{{made.extension, bytes_of(made.bytes)}};
    if (label >= 0) members.push_back({"cls", bytes_of(label_text)});
    if (!made.caption.empty()) members.push_back({"txt", bytes_of(made.caption)});
    members.push_back({"json", bytes_of(notes_text)});
    nlohmann::ordered_json line{{"outcome", "taken"}, {"sample", writer.add(members, shares_by_class_ ? label : -1)}};
    note_fit(made, line);
    report(path, std::move(line));
    ++taken_;
    captioned_ += made.caption.empty() ? 0 : 1;
    enlarged_ += made.enlarged ? 1 : 0;
    cut_.add(made.cut);
  }

  void report(const fs::path& path, nlohmann::ordered_json line) {
    nlohmann::ordered_json whole{{"file", path.lexically_relative(folder_).string()}};
    whole.update(line);
    report_ += formats::ascii_json(whole, -1) + "\n";
  }

  // "a.jpg" and "a.png": a photo and its mask, as sets for segmentation have them, or one picture in two formats.
  std::string of_one_name() const {
    std::int64_t many = 0;
    std::string first;
    for (size_t i = 1; i < found_.pictures.size(); ++i) {
      const auto &one = found_.pictures[i - 1], &next = found_.pictures[i];
      if (fs::path(one).replace_extension() != fs::path(next).replace_extension()) continue;
      if (many++ == 0)
        first = one.lexically_relative(folder_).string() + " and " + next.lexically_relative(folder_).string();
    }
    if (many == 0) return {};
    return std::string(many == 1 ? "the name of 1 picture differs"
                                 : "names of " + std::to_string(many) + " pictures differ") +
           " from another's by the suffix alone (" + first + "): each is a sample of its own, masks too";
  }

  // By links within the folder, hard ones too.
  std::string of_one_file() const {
    std::map<std::string, const fs::path*> seen;
    std::size_t many = 0;
    std::string first;
    for (const auto& picture : found_.pictures) {
      const auto [before, is_new] = seen.emplace(formats::identity_of(picture.string()), &picture);
      if (!is_new && many++ == 0)
        first = before->second->lexically_relative(folder_).string() + " and " +
                picture.lexically_relative(folder_).string();
    }
    if (many == 0) return {};
    return formats::counted(many, "picture") + (many == 1 ? " is" : " are") + " the same file as another (" + first +
           "): each is a sample of its own, and may be held out while the other is learned from";
  }

  // Classes that are called by numbers, other ones than their own.
  std::string of_numbers() const {
    for (size_t i = 0; i < names_.size(); ++i)
      if (const auto number = formats::number_of_name(names_[i]); number && *number != static_cast<double>(i))
        return "classes are called by numbers, and numbered in alphabetical order: " + names_[i] + " is number " +
               std::to_string(i) + "; `ditto sample --classes` takes the names";
    return {};
  }

  std::string of_fit() const {
    if (pictures_.fit == Fit::pad) return cut_.padded("--fit pad");
    if (pictures_.fit == Fit::stretch) return cut_.stretched("--fit stretch");
    return cut_.sentence("--size; --fit pad or stretch keeps all");
  }

  // What a table's column of that name says is noted with each picture, and decides nothing.
  std::string of_splits() const {
    const auto has_split = [this](const fs::path& picture) {
      const auto* notes = notes_.find(picture);
      return notes && notes->contains("split");
    };
    const auto many = std::count_if(found_.pictures.begin(), found_.pictures.end(), has_split);
    if (many == 0) return {};
    return "of " + formats::counted(static_cast<size_t>(many), "picture") +
           " a table has \"split\", which is not followed: --validation holds out a share, whatever it says";
  }

  std::vector<std::string> what_else() const {
    auto said = notes_.not_there(found_.pictures);
    for (auto& line :
         {of_one_name(), of_masks(found_.pictures, folder_), of_one_file(), of_numbers(), of_fit(), of_splits()})
      if (!line.empty()) said.push_back(line);
    const auto said_of = [](int64_t count, const char* one, const char* many) {
      return formats::counted(static_cast<size_t>(count), "picture") + (count == 1 ? one : many);
    };
    if (captioned_ > 0)
      said.push_back(said_of(captioned_, " has a caption", " have captions") +
                     ": a run learns from them with data.caption = \"txt\" and a model of texts");
    if (captioned_ > 0 && captioned_ < taken_)
      said.push_back(std::to_string(taken_ - captioned_) + " of " +
                     said_of(taken_, " has", taken_ - captioned_ == 1 ? " has" : " have") +
                     " no caption: a run with data.caption = \"txt\" refuses them");
    if (enlarged_ > 0)
      said.push_back(said_of(enlarged_, " was smaller than --size, and was enlarged",
                             " were smaller than --size, and were enlarged"));
    for (size_t i = 0; i < counts_.size(); ++i)
      if (counts_[i] == 0)
        said.push_back("class " + std::to_string(i) + ", " + names_[i] + ", has no picture that decodes");
    return said;
  }

  const std::string folder_;
  const PrepareOptions& options_;
  const FolderOptions& pictures_;
  const int64_t threads_;
  Memory memory_;
  PictureFolder found_;
  PictureNotes notes_;
  std::map<std::string, int64_t> classes_;  // their numbers
  std::vector<std::string> names_;
  std::vector<int64_t> counts_;
  Prepared prepared_;
  std::string report_;
  int64_t taken_ = 0, captioned_ = 0, enlarged_ = 0;
  bool shares_by_class_ = true;
  CutOff cut_;
};

}  // namespace

Prepared prepare_folder(const std::string& folder, const PrepareOptions& options, const FolderOptions& pictures) {
  return FolderPreparer(folder, options, pictures).run();
}

}  // namespace ditto
