#include "core/dataset/picture_folder.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>
#include <span>

#include <ditto/error.h>

#include "core/dataset/picture_notes.h"
#include "core/formats/file.h"
#include "core/formats/junk_name.h"
#include "core/formats/picture/picture.h"
#include "core/formats/picture/tiff_directory.h"

namespace ditto {

namespace {

namespace fs = std::filesystem;

constexpr size_t kNamed = 5;        // of each kind, in messages
constexpr size_t kFirstBytes = 64;  // tell a format

// Of what cameras write beside their JPEGs; many have the header of a TIFF.
constexpr std::array<std::string_view, 27> kRawSuffixes{
    ".3fr", ".arw", ".cr2", ".cr3", ".crw", ".dcr", ".dng", ".erf", ".fff", ".gpr", ".iiq", ".k25", ".kdc", ".mef",
    ".mos", ".mrw", ".nef", ".nrw", ".orf", ".pef", ".raf", ".raw", ".rw2", ".rwl", ".sr2", ".srw", ".x3f"};
constexpr std::array<std::string_view, 2> kTextSuffixes{".txt", ".caption"};  // of captions
constexpr std::array<std::string_view, 11> kSuffixes{".png",  ".jpg", ".jpeg", ".jfif", ".jpe", ".webp",
                                                     ".avif", ".tif", ".tiff", ".gif",  ".bmp"};

std::string suffix_of(const fs::path& path) { return lower_case(path.extension().string()); }

bool has_one_of(const std::string& suffix, std::span<const std::string_view> suffixes) {
  return std::find(suffixes.begin(), suffixes.end(), suffix) != suffixes.end();
}

struct Look {
  bool is_picture;
  const char* left_out = nullptr;  // why
};

Look look_into(const fs::path& path) {
  const auto suffix = suffix_of(path);
  try {
    const auto file = formats::RandomFile::open(path.string());
    const auto format = formats::sniff_picture(file->read(0, std::min<std::uint64_t>(file->size(), kFirstBytes)));
    const bool is_cameras = has_one_of(suffix, kRawSuffixes);
    if (format == formats::PictureFormat::tiff)
      if (const auto kind = is_cameras ? formats::TiffKind::raw : formats::tiff_kind(*file);
          kind != formats::TiffKind::picture)
        return {false, formats::why_no_picture(kind)};
    if (format == formats::PictureFormat::unknown && is_cameras)
      return {false, formats::why_no_picture(formats::TiffKind::raw)};
    return {format != formats::PictureFormat::unknown || has_one_of(suffix, kSuffixes)};
  } catch (const Error&) {
    return {true};  // reading it says why
  }
}

// Of a name its last suffix is told in any case: "a.PNG" and "a.png" are alike.
fs::path folded(const fs::path& path) {
  auto out = path;
  return out.replace_extension(suffix_of(path));
}

std::int64_t files_in(const fs::path& folder) {
  std::int64_t files = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (it->is_symlink(error) || !it->is_directory(error)) ++files;
  return files;
}

class Scan {
 public:
  explicit Scan(const std::string& folder) : folder_(folder) {
    std::error_code error;
    real_ = fs::canonical(folder_, error);
    for (fs::recursive_directory_iterator it(folder_, error), end; !error && it != end; it.increment(error))
      look_at(it);
    if (error) throw Error(ErrorKind::config, folder, "cannot be read: " + error.message(), "check the path");
  }

  PictureFolder result() {
    take_captions();
    leave_rest();
    for (auto* list : {&found_.left_out, &found_.unreadable})
      std::sort(list->begin(), list->end(), [](const LeftOut& a, const LeftOut& b) { return a.path < b.path; });
    if (found_.pictures.empty() && !found_.unreadable.empty())
      throw Error(ErrorKind::config, (folder_ / found_.unreadable.front().path).string(),
                  found_.unreadable.front().reason, "see to it that it may be read");
    if (found_.pictures.empty()) {
      std::string text;
      for (const auto& reason : sentences(found_.left_out)) text += (text.empty() ? "; left out: " : "; ") + reason;
      throw Error(ErrorKind::config, folder_.string(),
                  std::string("holds no ") + formats::kPictureFormats + " picture" + text, "name a folder of pictures");
    }
    std::sort(found_.pictures.begin(), found_.pictures.end());
    std::sort(found_.tables.begin(), found_.tables.end());
    return std::move(found_);
  }

 private:
  void leave(const fs::path& path, std::string reason, std::int64_t files = 1) {
    found_.left_out.push_back({path.lexically_relative(folder_), std::move(reason), files});
  }

  // What is in it would be missing, unsaid, or end the search of all others.
  void leave_unread(fs::recursive_directory_iterator& it, const std::error_code& error) {
    it.disable_recursion_pending();
    found_.unreadable.push_back(
        {it->path().lexically_relative(folder_), "this folder cannot be opened: " + error.message()});
  }

  void look_at(fs::recursive_directory_iterator& it) {
    std::error_code error;
    const fs::path& path = it->path();
    const bool is_link = it->is_symlink(error), is_folder = it->is_directory(error);
    if (formats::is_junk_name(path.filename().string())) {
      it.disable_recursion_pending();
      leave(path, "hidden, or left behind by a system or tool", is_folder && !is_link ? files_in(path) : 1);
    } else if (is_folder) {
      if (is_link)
        leave(path, "links to folders, which are not followed");
      else if (fs::directory_iterator(path, error); error)
        leave_unread(it, error);
      else if (it.depth() == 0)
        folders_.insert(path);
    } else if (is_link && !it->exists(error)) {
      leave(path, "links that lead nowhere");
    } else if (!it->is_regular_file(error)) {
      leave(path, "neither files nor folders");
    } else if (is_link && leads_out(path)) {
      leave(path, "links out of the folder, which are not followed");
    } else if (is_notes_name(path)) {
      found_.tables.push_back(path);
    } else if (const auto look = look_into(path); look.left_out) {
      leave(path, look.left_out);
    } else if (look.is_picture) {
      found_.pictures.push_back(path);
    } else {
      others_.push_back(path);
    }
  }

  bool leads_out(const fs::path& link) const {
    std::error_code error;
    const auto target = fs::canonical(link, error);
    const auto inside = target.lexically_relative(real_);
    return error || inside.empty() || *inside.begin() == "..";
  }

  void take_captions() {
    std::map<fs::path, std::map<size_t, fs::path>> texts;  // by what they are named for, and which suffix they have
    std::sort(others_.begin(), others_.end(), std::greater<>());  // of a.txt and a.TXT the first one stays
    for (const auto& path : others_)
      for (size_t i = 0; i < kTextSuffixes.size(); ++i)
        if (suffix_of(path) == kTextSuffixes[i]) texts[folded(fs::path(path).replace_extension())].emplace(i, path);
    std::set<fs::path> taken;
    for (const auto& picture : found_.pictures) {
      const auto whole = texts.find(folded(picture));
      const auto stem = texts.find(folded(fs::path(picture).replace_extension()));
      for (size_t i = 0; i < kTextSuffixes.size(); ++i)
        for (const auto& found : {whole, stem})
          if (found != texts.end() && found->second.count(i) > 0)
            found_.captions.emplace(picture, found->second.at(i));  // the first one stays
      if (const auto caption = found_.captions.find(picture); caption != found_.captions.end())
        taken.insert(caption->second);
    }
    std::erase_if(others_, [&](const fs::path& path) {
      const auto suffix = suffix_of(path);
      if (taken.count(path) > 0) return true;
      if (has_one_of(suffix, kTextSuffixes))
        leave(path, "texts that are no caption: no picture has the name, or has another text beside it");
      else if (lower_case(path.stem().string()) == kNotesStem)
        leave(path, "tables of captions in a form that is not read: metadata.jsonl and metadata.csv are");
      else
        return false;
      return true;
    });
  }

  void leave_rest() {
    for (const auto& path : others_) {
      const auto suffix = suffix_of(path);
      leave(path, (suffix.empty() ? "files without a suffix" : suffix) + ", not " + formats::kPictureFormats);
    }
    for (const auto& picture : found_.pictures) folders_.erase(folder_ / *picture.lexically_relative(folder_).begin());
    for (const auto& path : folders_)
      leave(path, "folders without a picture, no classes", 0);  // their files stand above
  }

  fs::path folder_, real_;
  PictureFolder found_;
  std::vector<fs::path> others_;
  std::set<fs::path> folders_;  // directly in the folder
};

}  // namespace

PictureFolder pictures_under(const std::string& folder) { return Scan(folder).result(); }

std::vector<std::string> sentences(const std::vector<LeftOut>& left_out) {
  std::map<std::string, std::vector<const LeftOut*>> by_reason;
  for (const auto& one : left_out) by_reason[one.reason].push_back(&one);
  std::vector<std::string> said;
  for (const auto& [reason, all] : by_reason) {
    std::string text = reason + " (" + std::to_string(all.size()) + "): ";
    for (size_t i = 0; i < std::min(all.size(), kNamed); ++i) text += (i > 0 ? ", " : "") + all[i]->path.string();
    said.push_back(all.size() > kNamed ? text + ", …" : text);
  }
  return said;
}

}  // namespace ditto
