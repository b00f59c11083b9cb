// Files that spare work, and without which all goes on: in the user's cache.
#pragma once

#include <filesystem>
#include <string>

namespace ditto::report {

// Ditto's folder PART there: below $XDG_CACHE_HOME, or ~/.cache. Empty where the user has neither.
std::filesystem::path user_cache(const char* part);
// Makes its folder too. Other processes may write the same at the same moment: readers see one of the files, whole. A
// cache that cannot be written costs time, and is no error.
void write_cached(const std::filesystem::path& file, const std::string& text);

}  // namespace ditto::report
