#include "core/sample/kept_texts.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include <fmt/format.h>

namespace ditto {

namespace fs = std::filesystem;

const NamedTensors& KeptTexts::part(const std::string& key, int64_t begin, int64_t count, const Encode& encode) {
  const auto path = (fs::path(folder_) / fmt::format("{}-{}.safetensors", key, begin)).string();
  if (path == last_) return of_last_;
  if (fs::exists(path)) {
    of_last_ = read_tensors(path);
    found += count;
  } else {
    of_last_ = encode(begin, count);
    encoded += count;
    fs::create_directories(folder_);
    write_tensors(path, of_last_);
  }
  last_ = path;
  return of_last_;
}

NamedTensors KeptTexts::rows(const std::string& key, int64_t first, int64_t count, int64_t total,
                             const Encode& encode) {
  std::map<std::string, std::vector<torch::Tensor>> pieces;
  for (int64_t at = first; at < first + count;) {
    const int64_t begin = at / at_once_ * at_once_, end = std::min(begin + at_once_, total);
    const int64_t last = std::min(end, first + count);
    for (const auto& [name, tensor] : part(key, begin, end - begin, encode))
      pieces[name].push_back(tensor.slice(0, at - begin, last - begin));
    at = last;
  }
  NamedTensors made;
  for (const auto& [name, list] : pieces) made[name] = list.size() == 1 ? list.front() : torch::cat(list);
  return made;
}

}  // namespace ditto
