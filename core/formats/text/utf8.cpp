#include "core/formats/text/utf8.h"

#include <ditto/error.h>
#include <ditto/text.h>

namespace ditto::formats {

namespace {

constexpr std::string_view kMark = "\xEF\xBB\xBF", kBlanks = " \t\n\v\f";

[[noreturn]] void refuse_encoding(std::string_view bytes, std::string_view where) {
  constexpr const char* kRemedy = "save it as UTF-8";
  if (bytes.starts_with("\xFF\xFE") || bytes.starts_with("\xFE\xFF"))
    throw Error(ErrorKind::data, where, "is no UTF-8: it begins as UTF-16 does", kRemedy);
  if (const auto at = bytes.find('\0'); at != std::string_view::npos)
    throw Error(ErrorKind::data, where,
                "is no text: byte " + std::to_string(at) + " is zero, as in UTF-16 without a mark", kRemedy);
  throw Error(ErrorKind::data, where, "is no UTF-8 at byte " + std::to_string(*utf8_damage(bytes)), kRemedy);
}

}  // namespace

std::optional<std::size_t> utf8_damage(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = utf8_length(text.substr(i));
    if (length == 0) return i;
    i += length;
  }
  return std::nullopt;
}

std::string_view without_mark(std::string_view text) {
  while (text.starts_with(kMark)) text.remove_prefix(kMark.size());
  return text;
}

std::string with_plain_ends(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i)
    if (text[i] != '\r')
      out += text[i];
    else if (i + 1 == text.size() || text[i + 1] != '\n')
      out += '\n';
  return out;
}

std::string plain_text(std::string_view bytes, std::string_view where) {
  if (utf8_damage(bytes) || bytes.find('\0') != std::string_view::npos) refuse_encoding(bytes, where);
  const std::string text = with_plain_ends(without_mark(bytes));
  const auto first = text.find_first_not_of(kBlanks);
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

}  // namespace ditto::formats
