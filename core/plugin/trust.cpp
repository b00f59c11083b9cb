#include "core/plugin/trust.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include <boost/dll/runtime_symbol_info.hpp>

#include <ditto/text.h>

namespace ditto {

namespace fs = std::filesystem;

namespace {

bool anybody_writes(const fs::path& path) {
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0) return false;
  return (about.st_mode & S_IWOTH) != 0 && !(S_ISDIR(about.st_mode) && (about.st_mode & S_ISVTX));
}

// The file, or the nearest folder above it, that everybody may write; empty: none.
std::string open_to_all(const fs::path& file) {
  for (fs::path at = file;; at = at.parent_path()) {
    if (anybody_writes(at)) return at;
    if (!at.has_relative_path()) return {};
  }
}

// Of this process, which does not change them.
struct Trusted {
  std::vector<uid_t> owners{0, ::geteuid()};
  bool everybody = false;
  Trusted() {
    const fs::path program = fs::path(boost::dll::program_location());
    struct stat about {};
    if (::stat("/proc/self/exe", &about) == 0) owners.push_back(about.st_uid);
    everybody = !open_to_all(program).empty();
  }
};

}  // namespace

std::string distrust(const std::string& path) {
  static const Trusted trusted;
  const auto folder = fs::path(path).parent_path();
  for (const fs::path& at : {fs::path(path), folder}) {
    struct stat about {};
    if (::stat(at.c_str(), &about) != 0) return std::string("cannot be looked at: ") + std::strerror(errno);
    const bool shared = S_ISDIR(about.st_mode) && (about.st_mode & S_ISVTX);  // what is in there has its own owner
    if (shared || std::count(trusted.owners.begin(), trusted.owners.end(), about.st_uid)) continue;
    return (at == path ? "it belongs" : "its folder " + shown(at.string()) + " belongs") + " to user " +
           std::to_string(about.st_uid) +
           ", who is neither you, nor root, nor this program's owner; copy it to a folder of your own if you trust it";
  }
  const auto open = trusted.everybody ? std::string() : open_to_all(path);
  if (open.empty()) return {};
  return (open == path ? std::string("everybody") : "its folder " + shown(open) + " is one that everybody") +
         " may write" + (open == path ? " it" : "") + "; chmod o-w " + shown(open);
}

}  // namespace ditto
