#include "core/formats/archive/shard.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include <ditto/text.h>

#include "core/formats/junk_name.h"
#include "core/formats/limits.h"
#include "core/formats/text/json.h"
#include "core/formats/text/utf8.h"

namespace ditto::formats {

namespace {

std::string text_of(const JsonPath& path) {
  std::string text;
  for (const auto& part : path) text += (text.empty() ? "" : ".") + part;
  return shown(text);
}

// Null: it is not there.
const nlohmann::json* json_value(const nlohmann::json& root, const JsonPath& path) {
  const nlohmann::json* value = &root;
  for (const auto& part : path) {
    if (value->is_object()) {
      const auto it = value->find(part);
      if (it == value->end()) return nullptr;
      value = &*it;
    } else {
      std::size_t number = 0;
      const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
      if (!value->is_array() || error != std::errc{} || end != part.data() + part.size() || number >= value->size())
        return nullptr;
      value = &(*value)[number];
    }
  }
  return value;
}

nlohmann::json json_field(std::string_view json, const JsonPath& path, std::string_view where) {
  const auto root = parse_json(json, where, ErrorKind::data);
  const auto* value = json_value(root, path);
  if (!value)
    throw Error(ErrorKind::data, where, "there is no field \"" + text_of(path) + "\"", "add it, or name another field");
  return *value;
}

// `key`: of a sample that had ended; empty: the sample has such a member.
Error twice(const std::string& place, const std::string& key) {
  if (key.empty()) return {ErrorKind::data, place, "this member is there twice", "give each sample its own name"};
  return {ErrorKind::data, place, "its sample \"" + shown(key) + "\" stands in two places of the shard",
          "keep the files of one sample next to each other, and give each sample its own name"};
}

}  // namespace

MemberName split_member_name(std::string_view name) {
  const auto slash = name.rfind('/');
  const auto dot = name.find('.', slash == std::string_view::npos ? 0 : slash + 1);
  if (dot == std::string_view::npos) return {std::string(name), ""};
  MemberName out{std::string(name.substr(0, dot)), std::string(name.substr(dot + 1))};
  for (char& c : out.extension)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

bool is_sample_part(std::string_view name) {
  const auto slash = name.rfind('/');
  const auto base = slash == std::string_view::npos ? 0 : slash + 1;
  const auto dot = name.find('.', base);
  const auto first = name.substr(0, name.find('/'));
  const bool is_note = first.size() >= 4 && first.starts_with("__") && first.ends_with("__");
  return dot != std::string_view::npos && dot > base && !is_note;
}

bool is_meant_part(std::string_view name) { return is_sample_part(name) && !is_junk_path(name); }

const ShardMember* ShardSample::find(std::string_view extension) const {
  for (const auto& member : members)
    if (member.extension == extension) return &member;
  return nullptr;
}

std::vector<ShardSample> shard_samples(const TarIndex& index, std::string_view where, const SampleRules& rules) {
  std::vector<ShardSample> samples;
  std::unordered_set<std::string> seen, extensions;  // of all samples, and of the last one, which may have many
  for (const auto& member : index.members) {
    if (!rules.is_part(member.name)) continue;
    auto name = split_member_name(member.name);
    const bool begins = samples.empty() || samples.back().key != name.key;
    const bool is_back = begins && !seen.insert(name.key).second;
    if (begins && !is_back) extensions = {};
    if (is_back || !extensions.insert(name.extension).second) {
      const auto error = twice(std::string(where) + ":" + shown(member.name), is_back ? name.key : "");
      if (!rules.refuses || rules.refuses(member, error)) throw error;
      continue;
    }
    if (begins) samples.push_back({std::move(name.key), {}, member.header});
    samples.back().members.push_back({std::move(name.extension), member.offset, member.size});
  }
  return samples;
}

std::map<std::string, std::string> parts_left_out(const TarIndex& index) {
  std::map<std::string, std::string> parts;
  for (const auto& one : index.left_out) {
    if (!is_meant_part(one.name)) continue;
    const auto name = split_member_name(one.name);
    parts[name.key + "." + name.extension] = one.why;
  }
  return parts;
}

std::vector<std::byte> read_member(const RandomFile& file, std::uint64_t offset, std::uint64_t size,
                                   std::string_view where) {
  if (size > limits::kMemberBytes)
    throw Error(
        ErrorKind::data, where,
        "has " + std::to_string(size) + " bytes; at most " + std::to_string(limits::kMemberBytes) + " are read");
  return file.read(offset, size, where);
}

std::int64_t parse_label(std::string_view text, std::string_view where) {
  constexpr std::string_view kSpace = " \t\r\n";
  text = without_mark(text);
  const auto first = text.find_first_not_of(kSpace);
  const auto last = text.find_last_not_of(kSpace);
  const auto digits = first == std::string_view::npos ? std::string_view{} : text.substr(first, last - first + 1);
  std::int64_t value = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (digits.empty() || error != std::errc{} || end != digits.data() + digits.size() || value < 0)
    throw Error(ErrorKind::data, where, "the label is \"" + shown(text, 40) + "\"; expected an integer, 0 or more",
                "write the class as a number");
  return value;
}

std::int64_t json_label(std::string_view json, const JsonPath& path, std::string_view where) {
  const auto value = json_field(json, path, where);
  if (!value.is_number_integer() || value < 0 || (value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX))
    throw Error(ErrorKind::data, where,
                "field \"" + text_of(path) + "\" is " + shown(value.dump(), 40) + "; expected an integer, 0 or more",
                "write the class as a number");
  return value.get<std::int64_t>();
}

std::string json_text(std::string_view json, const JsonPath& path, std::string_view where) {
  const auto value = json_field(json, path, where);
  if (!value.is_string())
    throw Error(ErrorKind::data, where,
                "field \"" + text_of(path) + "\" is " + shown(value.dump(), 40) + "; expected a string");
  return value.get<std::string>();
}

bool json_has(std::string_view json, const JsonPath& path, std::string_view where) {
  return json_value(parse_json(json, where, ErrorKind::data), path) != nullptr;
}

}  // namespace ditto::formats
