#include "contents.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <vector>

namespace webdataset {

namespace {

constexpr std::uint64_t kWhole = 1 << 20, kParts = 64, kPartBytes = kWhole / kParts;

class Hasher {
 public:
  Hasher() { XXH3_128bits_reset(&state_); }
  void add(const void* bytes, std::size_t size) { XXH3_128bits_update(&state_, bytes, size); }
  void add(std::uint64_t number) { add(&number, sizeof number); }
  void add(const std::string& text) {
    add(text.size());
    add(text.data(), text.size());
  }
  XXH128_hash_t finish() const { return XXH3_128bits_digest(&state_); }

 private:
  XXH3_state_t state_;
};

void add_samples(Hasher& hasher, const Item* first, const Item* last) {
  for (const Item* item = first; item != last; ++item) {
    hasher.add(item->key);
    hasher.add(item->extension);
    hasher.add(static_cast<std::uint64_t>(item->label_read));
    for (const Range& range : {item->image, item->label, item->caption}) {
      hasher.add(range.offset);
      hasher.add(range.size);
    }
    if (item->text.size > 0) {  // it came later: others keep their hash
      hasher.add(item->text.offset);
      hasher.add(item->text.size);
    }
  }
}

void add_bytes(Hasher& hasher, const OpenFiles& files, std::size_t i) {
  const auto file = files.get(i);
  const std::uint64_t size = file->size();
  hasher.add(size);
  const std::uint64_t many = is_url(files.paths()[i]) ? 2 : kParts;
  const std::uint64_t parts = size <= kWhole ? 1 : many, bytes = size <= kWhole ? size : kPartBytes;
  for (std::uint64_t part = 0; part < parts; ++part) {
    const auto read = file->read(part == 0 ? 0 : (size - bytes) * part / (parts - 1), bytes);
    hasher.add(read.data(), read.size());
  }
}

std::string hash_of_all(const std::vector<XXH128_hash_t>& shards) {
  Hasher all;
  for (const auto& shard : shards) {
    all.add(shard.low64);
    all.add(shard.high64);
  }
  const auto hash = all.finish();
  char hex[33];
  std::snprintf(hex, sizeof hex, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return hex;
}

}  // namespace

std::string hash_of_contents(const ShardIndex& index, const OpenFiles& files) {
  std::vector<XXH128_hash_t> shards(index.paths.size());
  for_each_shard(index.paths.size(), [&](std::size_t i) {
    const auto [first, last] = std::equal_range(index.items.begin(), index.items.end(),
                                                Item{static_cast<std::uint32_t>(i), {}, {}, {}, {}, {}, {}},
                                                [](const Item& a, const Item& b) { return a.shard < b.shard; });
    Hasher hasher;
    add_samples(hasher, std::to_address(first), std::to_address(last));
    add_bytes(hasher, files, i);
    shards[i] = hasher.finish();
  });
  return hash_of_all(shards);
}

std::string hash_of_files(const OpenFiles& files) {
  std::vector<XXH128_hash_t> hashes(files.paths().size());
  for_each_shard(hashes.size(), [&](std::size_t i) {
    Hasher hasher;
    add_bytes(hasher, files, i);
    hashes[i] = hasher.finish();
  });
  return hash_of_all(hashes);
}

}  // namespace webdataset
