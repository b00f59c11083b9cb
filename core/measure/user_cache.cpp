#include "core/measure/user_cache.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>

namespace ditto::report {

namespace fs = std::filesystem;

fs::path user_cache(const char* part) {
  const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  if (cache && *cache == '/') return fs::path(cache) / "ditto" / part;
  if (home && *home == '/') return fs::path(home) / ".cache/ditto" / part;
  return {};
}

void write_cached(const fs::path& file, const std::string& text) {
  std::error_code ignored;
  fs::create_directories(file.parent_path(), ignored);
  const auto beside = file.string() + "." + std::to_string(::getpid());
  std::ofstream out(beside, std::ios::binary);
  if ((out << text).flush())
    fs::rename(beside, file, ignored);
  else
    fs::remove(beside, ignored);
}

}  // namespace ditto::report
