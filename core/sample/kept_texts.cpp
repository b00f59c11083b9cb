#include "core/sample/kept_texts.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/checkpoint/disk.h"

namespace ditto {

namespace fs = std::filesystem;

namespace {

constexpr const char* kChecksum = "checksum";

torch::Tensor checksum_of(const NamedTensors& tensors) {
  checkpoint::ChunkHasher hasher;
  for (const auto& [name, tensor] : tensors) {
    const auto here = tensor.cpu().contiguous();
    hasher.update(std::as_bytes(std::span(name)));
    hasher.update(bytes_of(here));
  }
  std::string text;
  for (const auto& chunk : hasher.finish()) text += chunk;
  auto made = torch::empty({static_cast<int64_t>(text.size())}, torch::kByte);
  std::copy(text.begin(), text.end(), made.data_ptr<uint8_t>());
  return made;
}

// Nothing where the file is not there, or not whole: what it holds is made again.
std::optional<NamedTensors> read_whole(const std::string& path) {
  if (!fs::exists(path)) return {};
  try {
    auto tensors = read_tensors(path);
    const auto noted = tensors.extract(kChecksum);
    if (noted.empty() || !torch::equal(noted.mapped(), checksum_of(tensors))) return {};
    return tensors;
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

const NamedTensors& KeptTexts::part(const std::string& key, int64_t begin, int64_t count, const Encode& encode) {
  const auto path = (fs::path(folder_) / fmt::format("{}-{}.safetensors", key, begin)).string();
  if (path == last_) return of_last_;
  if (auto kept = read_whole(path)) {
    of_last_ = std::move(*kept);
    found += count;
  } else {
    of_last_ = encode(begin, count);
    encoded += count;
    fs::create_directories(folder_);
    auto noted = of_last_;
    noted[kChecksum] = checksum_of(of_last_);
    write_tensors(path, noted);
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
