// Where a label or a caption stands in a sample.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ditto/formats/shard.h>

namespace webdataset {

// A to Z as a to z: as shards' extensions are known.
std::string lower(std::string text);

// A member, "cls", or a value inside of a JSON one.
struct Place {
  std::string extension;
  ditto::formats::JsonPath path;  // empty: the whole member
};

// "cls", "json:label", or as Energon's field maps have it, "json[label][0]" and several with commas, of which the first
// that a sample has is taken; "none": nothing is wanted.
struct TextPlace {
  std::vector<Place> any_of;

  // Throws std::invalid_argument with what is wrong.
  static TextPlace parse(const std::string& text);
  bool wanted() const { return !any_of.empty(); }
  const std::string& extension() const { return any_of.front().extension; }  // for messages
};

// A caption is UTF-8, as it was meant (formats::plain_text). Both throw Error(data) at `where`.
std::int64_t label_in(std::span<const std::byte> member, const Place& from, const std::string& where);
std::string caption_in(std::span<const std::byte> member, const Place& from, const std::string& where);

}  // namespace webdataset
