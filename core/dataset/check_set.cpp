#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <sstream>

#include <ditto/error.h>

#include "core/dataset/inspect.h"
#include "core/dataset/nv_meta.h"
#include "core/formats/archive/tar.h"
#include "core/formats/file.h"
#include "core/formats/sha256.h"
#include "core/formats/text/json.h"

namespace ditto {

namespace {

namespace fs = std::filesystem;

// "HASH  NAME" lines, as sha256sum writes and checks them.
std::map<std::string, std::string> sums_in(const std::string& path) {
  std::map<std::string, std::string> sums;
  std::istringstream lines(formats::read_file(path, ErrorKind::data, 256u << 20));
  constexpr size_t kDigits = 64;
  for (std::string line; std::getline(lines, line);)
    if (line.size() > kDigits + 2) sums[line.substr(kDigits + 2)] = line.substr(0, kDigits);
  return sums;
}

class Check {
 public:
  explicit Check(const std::string& folder) : folder_(folder) {}

  std::vector<std::string> run() {
    check_sums();
    check_indices();
    return std::move(said_);
  }

 private:
  std::string at(const std::string& name) const { return (folder_ / name).string(); }

  void check_sums() {
    if (!fs::exists(at(kSumsName))) return;
    const auto sums = sums_in(at(kSumsName));
    for (const auto& [name, sum] : sums) try {
        if (formats::sha256_of_file(at(name)) != sum)
          said_.push_back(at(name) + ": has other bytes than " + kSumsName + " says, which were written with it");
      } catch (const Error& error) {
        said_.emplace_back(error.what());
      }
    for (const auto& shard : shards_in(folder_.string()))
      if (sums.count(fs::path(shard).filename().string()) == 0)
        said_.push_back(shard + ": is not in " + kSumsName + ", and was not made with the others");
  }

  void check_indices() {
    const auto info = at(".nv-meta/.info.json");
    if (!fs::exists(info)) return;
    const auto notes = formats::parse_json(formats::read_file(info, ErrorKind::data), info, ErrorKind::data);
    const auto counts = notes.is_object() ? notes.find("shard_counts") : notes.end();
    if (counts == notes.end() || !counts->is_object()) {
      said_.push_back(info + ": names no shard");
      return;
    }
    for (const auto& [name, count] : counts->items()) try {
        check_index(name, count.is_number_integer() ? count.get<int64_t>() : -1);
      } catch (const Error& error) {
        said_.emplace_back(error.what());
      }
  }

  void check_index(const std::string& name, int64_t count) {
    const auto starts = sample_starts(formats::index_tar(at(name)), at(name));
    if (static_cast<int64_t>(starts.size()) != count + 1)
      said_.push_back(at(name) + ": has " + std::to_string(starts.size() - 1) + " samples, and .nv-meta counts " +
                      std::to_string(count));
    const auto index = formats::read_file(at(name + ".idx"), ErrorKind::data);
    const auto expected = std::as_bytes(std::span(starts));
    if (!std::ranges::equal(std::as_bytes(std::span(index)), expected))
      said_.push_back(at(name + ".idx") + ": does not fit its shard; `energon prepare --tar-index-only` makes it anew");
  }

  fs::path folder_;
  std::vector<std::string> said_;
};

}  // namespace

std::vector<std::string> check_set(const std::string& folder) { return Check(folder).run(); }

}  // namespace ditto
