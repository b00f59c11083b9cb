#include "core/formats/output_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include <ditto/error.h>

#include "core/formats/file.h"

namespace ditto::formats {

namespace {

constexpr auto kPatience = std::chrono::seconds(5);

[[noreturn]] void fail(const std::string& path, const std::string& option, const std::string& what,
                       ErrorKind kind = ErrorKind::config) {
  throw Error(kind, option + " " + path, what, "name a folder that can be written");
}

// A disk without room is no mistake of who named the folder; it is said as for every file that finds none.
bool is_full(const std::error_code& error) { return error == std::errc::no_space_on_device || error.value() == EDQUOT; }

}  // namespace

void make_output_folder(const std::string& path, const std::string& option) {
  require_plain_path(path, option);
  if (const auto dangling = said_of_dangling(path); !dangling.empty()) fail(path, option, dangling);
  std::error_code error, ignored;
  std::filesystem::create_directories(path, error);
  const auto there = std::filesystem::status(path, ignored);
  if (std::filesystem::exists(there) && !std::filesystem::is_directory(there))
    fail(path, option, "cannot be made: a file is there");
  if (error)
    fail(path, option, "cannot be made: " + error.message(), is_full(error) ? ErrorKind::data : ErrorKind::config);
  require_writable(path, option);
}

Descriptor claim_output_folder(const std::string& path, const std::string& option) {
  Descriptor claim(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (::flock(claim.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    if (std::chrono::steady_clock::now() > until)
      throw Error(ErrorKind::config, option + " " + path, "is being written by another process",
                  "wait for it or end it: the same command then goes on from there");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return claim;
}

void require_output_file(const std::string& path, const std::string& option) {
  require_plain_path(path, option);
  if (const auto dangling = said_of_dangling(path); !dangling.empty())
    throw Error(ErrorKind::config, option + " " + path, dangling, "remove the link, or name another file");
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    throw Error(ErrorKind::config, option + " " + path, "is a folder", "name a file");
  const auto folder = std::filesystem::path(path).parent_path();
  require_writable(folder.empty() ? "." : folder.string(), option);
}

void require_writable(const std::string& folder, const std::string& option) {
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    fail(folder, option, std::string("cannot be written into: ") + std::strerror(errno));
}

}  // namespace ditto::formats
