#include "text_place.h"

#include <stdexcept>

#include <ditto/formats/utf8.h>

namespace webdataset {

namespace formats = ditto::formats;

namespace {

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Place parsed(const std::string& text) {
  const auto colon = text.find(':');
  if (colon != std::string::npos) return {lower(text.substr(0, colon)), {text.substr(colon + 1)}};
  Place place{lower(text.substr(0, text.find('['))), {}};
  std::string_view rest = std::string_view(text).substr(place.extension.size());
  while (!rest.empty()) {
    const auto end = rest.find(']');
    if (rest.front() != '[' || end == std::string_view::npos || end == 1)
      throw std::invalid_argument("\"" + text + "\" is no place in a sample");
    place.path.emplace_back(rest.substr(1, end - 1));
    rest.remove_prefix(end + 1);
  }
  if (place.extension.empty()) throw std::invalid_argument("\"" + text + "\" names no member");
  return place;
}

}  // namespace

std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

TextPlace TextPlace::parse(const std::string& text) {
  TextPlace all;
  if (text == "none") return all;
  for (std::size_t at = 0, comma = 0; comma != std::string::npos; at = comma + 1) {
    comma = text.find(',', at);
    all.any_of.push_back(parsed(text.substr(at, comma - at)));
  }
  return all;
}

std::int64_t label_in(std::span<const std::byte> member, const Place& from, const std::string& where) {
  return from.path.empty() ? formats::parse_label(text_of(member), where)
                           : formats::json_label(text_of(member), from.path, where);
}

std::string caption_in(std::span<const std::byte> member, const Place& from, const std::string& where) {
  return formats::plain_text(
      from.path.empty() ? std::string(text_of(member)) : formats::json_text(text_of(member), from.path, where), where);
}

}  // namespace webdataset
