#include "class_notes.h"

#include <map>
#include <nlohmann/json.hpp>

#include <ditto/error.h>
#include <ditto/text.h>

#include <ditto/formats/json.h>
#include <ditto/formats/names.h>

namespace webdataset {

using ditto::Error;
using ditto::ErrorKind;
using ditto::shown;
using ditto::formats::is_same_name;

namespace {

constexpr const char* kRemedy =
    "make all shards together (`ditto data prepare`), or name the classes in data.names as the labels number them";

std::string quoted(const std::string& name) { return '"' + shown(name, 60) + '"'; }

std::string said(const ClassNote& note) {
  return shown(note.where) + ": label " + std::to_string(note.label) + " is called " + quoted(note.name) + " there";
}

std::vector<std::string> compare_with(const std::vector<ClassNote>& notes, const std::vector<std::string>& names) {
  for (const auto& note : notes) {
    const auto label = static_cast<std::size_t>(note.label);
    if (label < names.size() && is_same_name(names[label], note.name)) continue;
    for (std::size_t i = 0; i < names.size(); ++i)
      if (is_same_name(names[i], note.name))
        throw Error(ErrorKind::config, "data.names",
                    "has " + quoted(note.name) + " as number " + std::to_string(i) + ", and " + said(note), kRemedy);
  }
  for (const auto& note : notes)
    if (const auto label = static_cast<std::size_t>(note.label); label < names.size())
      if (!is_same_name(names[label], note.name))
        return {said(note) + ", and " + quoted(names[label]) + " by the names of the data"};
  return {};
}

}  // namespace

std::optional<ClassNote> class_note(std::int64_t label, std::span<const std::byte> notes, const std::string& where) {
  try {
    const auto json =
        ditto::formats::parse_json({reinterpret_cast<const char*>(notes.data()), notes.size()}, where, ErrorKind::data);
    const auto name = json.is_object() ? json.find("class") : json.end();
    if (!json.is_object() || name == json.end() || !name->is_string()) return {};
    return ClassNote{label, name->get<std::string>(), where};
  } catch (const Error&) {
    return {};
  }
}

std::vector<std::string> compare_class_notes(const std::vector<ClassNote>& notes,
                                             const std::vector<std::string>& names) {
  if (!names.empty()) return compare_with(notes, names);
  // Nobody else says the names. A name at two numbers may be two classes' (ImageNet has two cranes), as long as each
  // number has one name.
  std::map<std::int64_t, const ClassNote*> by_label;
  for (const auto& note : notes)
    if (const auto [first, is_new] = by_label.emplace(note.label, &note);
        !is_new && !is_same_name(first->second->name, note.name))
      throw Error(ErrorKind::config, "data.shards", said(*first->second) + ", and " + said(note), kRemedy);
  for (const auto& [label, note] : by_label)
    for (auto later = std::next(by_label.find(label)); later != by_label.end(); ++later)
      if (is_same_name(note->name, later->second->name)) return {said(*note) + ", and " + said(*later->second)};
  return {};
}

}  // namespace webdataset
