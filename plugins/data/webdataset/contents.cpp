#include "contents.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <span>
#include <vector>

namespace webdataset {

namespace {

constexpr std::uint64_t kWhole = 1 << 20, kParts = 64, kPartBytes = kWhole / kParts, kEndBytes = 4 << 10;

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

void add_samples(Hasher& hasher, std::span<const Item> items) {
  for (const Item& item : items) {
    hasher.add(item.key);
    hasher.add(item.extension);
    hasher.add(static_cast<std::uint64_t>(item.label_read));
    for (const Range& range : {item.image, item.label, item.caption}) {
      hasher.add(range.offset);
      hasher.add(range.size);
    }
    if (item.text.size > 0) {  // it came later: others keep their hash
      hasher.add(item.text.offset);
      hasher.add(item.text.size);
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
    Hasher hasher;
    add_samples(hasher, index.items_of(i));
    add_bytes(hasher, files, i);
    shards[i] = hasher.finish();
  });
  return hash_of_all(shards);
}

std::string hash_of_ends(const OpenFiles& files,
                         const std::function<void(std::size_t shard, const TakeRange& take)>& members_of) {
  std::vector<XXH128_hash_t> shards(files.paths().size());
  std::atomic<bool> any = false;
  for_each_shard(shards.size(), [&](std::size_t i) {
    if (is_url(files.paths()[i])) return;
    const auto file = files.get(i);
    if (file->size() <= kWhole) return;
    any = true;
    Hasher hasher;
    std::array<std::byte, 2 * kEndBytes> bytes{};
    const auto add = [&](std::uint64_t offset, std::uint64_t size) {
      file->read(offset, std::span(bytes).first(size));
      hasher.add(bytes.data(), size);
    };
    members_of(i, [&](const Range& member) {
      hasher.add(member.size);
      if (member.size <= bytes.size()) return add(member.offset, member.size);
      add(member.offset, kEndBytes);
      add(member.offset + member.size - kEndBytes, kEndBytes);
    });
    shards[i] = hasher.finish();
  });
  return any ? ", ends " + hash_of_all(shards) : std::string();
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
