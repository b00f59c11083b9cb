// Tar shards in WebDataset's convention: the members of one sample stand next to each other and share a key, which is
// the path up to the first dot of the file's name; what follows the dot says what a member is: "0007.png", "0007.cls".
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tar.h"

namespace ditto::formats {

struct MemberName {
  std::string key;
  std::string extension;  // lower case, without the dot; "" where the name has none
};
MemberName split_member_name(std::string_view name);

// Whether WebDataset and Energon take a file for a part of a sample: it has an extension, is not hidden (macOS puts
// "._x.jpg" beside x.jpg), and lies in no folder of notes ("__notes__/…").
bool is_sample_part(std::string_view name);
// The same, and it is nothing that a system or tool left behind (junk_name.h): for shards without an index, which is
// Energon's own list of what counts.
bool is_meant_part(std::string_view name);

struct ShardMember {
  std::string extension;
  std::uint64_t offset;  // of its first byte in the file
  std::uint64_t size;    // bytes
};

struct ShardSample {
  std::string key;
  std::vector<ShardMember> members;                           // in the archive's order
  std::uint64_t header = 0;                                   // where the first one's begins
  const ShardMember* find(std::string_view extension) const;  // null: it has none
};

struct SampleRules {
  bool (*is_part)(std::string_view name) = is_sample_part;
  // Of a member that is there twice, or whose sample has ended: whether it is refused, or left out. Empty: it is
  // refused.
  std::function<bool(const TarMember& member, const Error& error)> refuses = {};
};

// The samples of one shard, in the archive's order, of the files that are parts of one. Throws Error(data) where two
// members of one sample have the same extension, or the same key comes back after other samples, unless the rules let
// such a member be left out.
std::vector<ShardSample> shard_samples(const TarIndex& index, std::string_view where, const SampleRules& rules = {});

// What a sample lacks though the archive names it: "0003.cls" (its extension in lower case) -> "is a symbolic link, …".
std::map<std::string, std::string> parts_left_out(const TarIndex& index);

// A member's bytes. Throws Error(data) at `where` for one of over 256 MiB: a file with holes is as large as it says.
std::vector<std::byte> read_member(const RandomFile& file, std::uint64_t offset, std::uint64_t size,
                                   std::string_view where);

// A label as text: one integer >= 0 with white space around it. Throws Error(data) at `where`.
std::int64_t parse_label(std::string_view text, std::string_view where);

// A value inside of a JSON text: its key in an object, and its key, or number, inside of that, …
using JsonPath = std::vector<std::string>;

// Such a value as an integer >= 0 or as text. Throws Error(data) at `where`.
std::int64_t json_label(std::string_view json, const JsonPath& path, std::string_view where);
std::string json_text(std::string_view json, const JsonPath& path, std::string_view where);
bool json_has(std::string_view json, const JsonPath& path, std::string_view where);

}  // namespace ditto::formats
