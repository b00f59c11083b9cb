#include "core/data/picture_folder.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include <ditto/error.h>

#include "core/formats/picture.h"
#include "core/formats/shard.h"

namespace ditto {

namespace {

namespace fs = std::filesystem;

constexpr size_t kNamed = 5;        // of each kind, in messages
constexpr size_t kFirstBytes = 16;  // tell a format

// What macOS, Windows, Synology, Linux and Python put into people's folders, beside what begins with a dot.
constexpr std::array<std::string_view, 11> kJunk{
    "__MACOSX", "Icon\r",   "Thumbs.db",  "ehthumbs.db", "desktop.ini", "$RECYCLE.BIN", "System Volume Information",
    "@eaDir",   "#recycle", "lost+found", "__pycache__"};

bool is_junk(const fs::path& path) {
  const auto name = path.filename().string();
  return name.starts_with('.') || std::find(kJunk.begin(), kJunk.end(), name) != kJunk.end();
}

std::string suffix_of(const fs::path& path) {
  std::string suffix = path.extension().string();
  std::transform(suffix.begin(), suffix.end(), suffix.begin(), [](unsigned char c) { return std::tolower(c); });
  return suffix;
}

bool is_picture(const fs::path& path) {
  const auto suffix = suffix_of(path);
  if (suffix == ".png" || suffix == ".jpg" || suffix == ".jpeg" || suffix == ".webp") return true;
  const auto file = formats::RandomFile::open(path.string());
  const auto first = file->read(0, std::min<std::uint64_t>(file->size(), kFirstBytes), path.string());
  return formats::sniff_picture(first) != formats::PictureFormat::unknown;
}

// "KIND (2): a, b"
std::string sentence(std::vector<fs::path> paths, const std::string& kind, const fs::path& folder) {
  std::sort(paths.begin(), paths.end());
  std::string text = kind + " (" + std::to_string(paths.size()) + "): ";
  for (size_t i = 0; i < std::min(paths.size(), kNamed); ++i)
    text += (i > 0 ? ", " : "") + paths[i].lexically_relative(folder).string();
  return paths.size() > kNamed ? text + ", …" : text;
}

class Scan {
 public:
  explicit Scan(const std::string& folder) : folder_(folder) {
    std::error_code error;
    for (fs::recursive_directory_iterator it(folder_, error), end; !error && it != end; it.increment(error))
      look_at(it);
    if (error) throw Error(ErrorKind::config, folder, "cannot be read: " + error.message(), "check the path");
  }

  PictureFolder result() {
    take_captions();
    PictureFolder found;
    found.left_out = reasons();
    if (pictures_.empty())
      throw Error(ErrorKind::config, folder_.string(), "holds no PNG, JPEG or WebP picture" + joined(found.left_out),
                  "name a folder of pictures");
    std::sort(pictures_.begin(), pictures_.end());
    found.pictures = std::move(pictures_);
    return found;
  }

 private:
  void look_at(fs::recursive_directory_iterator& it) {
    std::error_code error;
    const fs::path& path = it->path();
    if (is_junk(path)) {
      it.disable_recursion_pending();
      junk_.push_back(path);
    } else if (it->is_directory(error)) {
      if (it->is_symlink(error))
        links_.push_back(path);
      else if (it.depth() == 0)
        folders_.insert(path);
    } else if (!it->is_regular_file(error)) {
      odd_.push_back(path);
    } else if (is_picture(path)) {
      pictures_.push_back(path);
    } else {
      others_.push_back(path);
    }
  }

  void take_captions() {
    std::set<fs::path> captions;
    for (const auto& picture : pictures_) captions.insert(fs::path(picture).replace_extension(".txt"));
    std::erase_if(others_, [&](const fs::path& path) { return captions.count(path) > 0; });
  }

  std::vector<std::string> reasons() {
    for (const auto& picture : pictures_) folders_.erase(folder_ / *picture.lexically_relative(folder_).begin());
    std::map<std::string, std::vector<fs::path>> by_suffix;
    for (const auto& path : others_) by_suffix[suffix_of(path)].push_back(path);
    std::vector<std::string> said;
    const auto say = [&](const std::vector<fs::path>& paths, const std::string& kind) {
      if (!paths.empty()) said.push_back(sentence(paths, kind, folder_));
    };
    for (const auto& [suffix, paths] : by_suffix)
      say(paths, (suffix.empty() ? "files without a suffix" : suffix) + ", not PNG, JPEG or WebP");
    say({folders_.begin(), folders_.end()}, "folders without a picture, no classes");
    say(links_, "links to folders, which are not followed");
    say(odd_, "neither files nor folders");
    say(junk_, "hidden, or left behind by a system or tool");
    return said;
  }

  static std::string joined(const std::vector<std::string>& reasons) {
    std::string text;
    for (const auto& reason : reasons) text += (text.empty() ? "; left out: " : "; ") + reason;
    return text;
  }

  fs::path folder_;
  std::vector<fs::path> pictures_, others_, links_, odd_, junk_;
  std::set<fs::path> folders_;  // directly in the folder
};

}  // namespace

PictureFolder pictures_under(const std::string& folder) { return Scan(folder).result(); }

}  // namespace ditto
