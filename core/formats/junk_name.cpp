#include "core/formats/junk_name.h"

#include <algorithm>
#include <array>
#include <string>

namespace ditto::formats {

namespace {

constexpr std::array<std::string_view, 19> kJunk{// macOS
                                                 "__macosx", "icon\r", "network trash folder", "temporary items",
                                                 // Windows
                                                 "thumbs.db", "ehthumbs.db", "ehthumbs_vista.db", "desktop.ini",
                                                 "$recycle.bin", "recycler", "system volume information",
                                                 // Synology and QNAP
                                                 "@eadir", "@tmp", "#recycle", "#snapshot", "@recycle",
                                                 "@recently-snapshot",
                                                 // Linux and Python
                                                 "lost+found", "__pycache__"};

}  // namespace

bool is_junk_name(std::string_view name) {
  if (name.starts_with('.')) return name != "." && name != "..";
  std::string lower(name.substr(0, 32));
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return name.size() == lower.size() && std::find(kJunk.begin(), kJunk.end(), lower) != kJunk.end();
}

bool is_junk_path(std::string_view path) {
  while (!path.empty()) {
    const auto name = path.substr(0, path.find('/'));
    if (is_junk_name(name)) return true;
    path.remove_prefix(std::min(name.size() + 1, path.size()));
  }
  return false;
}

}  // namespace ditto::formats
