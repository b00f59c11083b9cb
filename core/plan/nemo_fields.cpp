#include "core/plan/nemo_fields.h"

#include <algorithm>

#include <ditto/error.h>
#include <ditto/text.h>

#include "core/formats/text/json.h"
#include "core/formats/text/yaml.h"

namespace ditto {

using nlohmann::json;

namespace {

std::string value_text(const json& value) { return shown(formats::ascii_json(value, -1)); }

}  // namespace

NemoFields::NemoFields(const std::string& yaml, const std::string& file)
    : file_(file), tree_(formats::parse_yaml(yaml, file, ErrorKind::config, lines_)) {
  if (!tree_.is_object())
    throw Error(ErrorKind::config, file_, "is no map of fields", "name a YAML file that NeMo trains by");
}

const json* NemoFields::find(const std::string& field) const {
  const json* at = &tree_;
  for (std::size_t begin = 0; begin <= field.size();) {
    const auto end = std::min(field.find('.', begin), field.size());
    const auto it = at->is_object() ? at->find(field.substr(begin, end - begin)) : at->end();
    if (!at->is_object() || it == at->end()) return nullptr;
    at = &*it;
    begin = end + 1;
  }
  return at;
}

json NemoFields::take(const std::string& field) {
  taken_.insert(field);
  const auto* value = find(field);
  // "${a.b}": OmegaConf's; of chains so long one goes round.
  constexpr int kMostNamed = 8;
  for (int named = 0; value && value->is_string(); ++named) {
    const auto text = value->get<std::string>();
    if (text.rfind("${", 0) != 0) break;
    if (named == kMostNamed || text.back() != '}')
      refuse(field, "= " + value_text(text), "write the value that it stands for");
    const auto other = text.substr(2, text.size() - 3);
    value = find(other);
    if (!value) refuse(field, "is that of " + shown(other) + ", and there is no such field", "write its value");
  }
  return value ? *value : json();
}

void NemoFields::refuse_kind(const std::string& field, const json& value, const char* kind) const {
  if (!has(field)) throw Error(ErrorKind::config, file_, "has no field " + field, std::string("add it: ") + kind);
  refuse(field, "= " + value_text(value), std::string("expected ") + kind);
}

double NemoFields::number(const std::string& field) {
  const auto value = take(field);
  if (!value.is_number()) refuse_kind(field, value, "a number");
  return value.get<double>();
}

int64_t NemoFields::whole(const std::string& field) {
  const auto value = take(field);
  if (!value.is_number_integer()) refuse_kind(field, value, "a whole number");
  return value.get<int64_t>();
}

int64_t NemoFields::whole(const std::string& field, int64_t otherwise) {
  return take(field).is_null() ? otherwise : whole(field);
}

bool NemoFields::flag(const std::string& field, bool otherwise) {
  const auto value = take(field);
  if (value.is_null()) return otherwise;
  if (!value.is_boolean()) refuse_kind(field, value, "True or False");
  return value.get<bool>();
}

std::string NemoFields::word(const std::string& field) {
  const auto value = take(field);
  if (value.is_number()) return value.dump();  // precision: 16
  if (!value.is_string()) refuse_kind(field, value, "a word");
  return value.get<std::string>();
}

std::string NemoFields::word(const std::string& field, const std::string& otherwise) {
  return take(field).is_null() ? otherwise : word(field);
}

std::string NemoFields::one_of(const std::string& field, const std::string& otherwise,
                               const std::map<std::string, std::string>& words) {
  const auto found = word(field, otherwise);
  if (const auto it = words.find(found); it != words.end()) return it->second;
  std::string all;
  for (const auto& [theirs, ours] : words) all += (all.empty() ? "" : ", ") + theirs;
  refuse(field, "= " + shown(found), "expected one of " + all);
}

void NemoFields::demand(const std::string& field, const std::vector<json>& values, const std::string& why,
                        const std::string& remedy) {
  if (!has(field)) return;
  const auto value = take(field);
  if (std::find(values.begin(), values.end(), value) == values.end())
    refuse(field, "= " + value_text(value) + ": " + why, remedy);
}

void NemoFields::leave_out(const std::string& field, const std::string& why) {
  const bool below = field.size() > 2 && field.compare(field.size() - 2, 2, ".*") == 0;
  const auto name = below ? field.substr(0, field.size() - 2) : field;
  const auto* found = find(name);
  if (!found) return;
  for (const auto& leaf : below ? leaves(*found, name) : std::vector<std::string>{name}) taken_.insert(leaf);
  notes_.push_back(name + ": " + why);
}

std::vector<std::string> NemoFields::leaves(const json& tree, const std::string& field) const {
  if (!tree.is_object() || tree.empty()) return {field};
  std::vector<std::string> all;
  for (const auto& [key, value] : tree.items())
    for (auto& leaf : leaves(value, field.empty() ? key : field + "." + key)) all.push_back(std::move(leaf));
  return all;
}

void NemoFields::refuse_rest() const {
  const auto line = [&](const std::string& field) { return lines_.contains(field) ? lines_.at(field) : 0; };
  auto all = leaves(tree_, "");
  std::stable_sort(all.begin(), all.end(), [&](const auto& a, const auto& b) { return line(a) < line(b); });
  for (const auto& field : all)
    if (!field.empty() && !taken_.contains(field))
      refuse(field, "is no field that NeMo's Imagen is known to read", "leave it out, or correct its name");
}

void NemoFields::refuse(const std::string& field, const std::string& what, const std::string& remedy) const {
  // Of a field that is missing, that of what it would stand in.
  auto there = field;
  while (!lines_.contains(there) && there.find('.') != std::string::npos) there.resize(there.rfind('.'));
  const auto it = lines_.find(there);
  throw Error(ErrorKind::config, it == lines_.end() ? file_ : file_ + ":" + std::to_string(it->second),
              shown(field) + " " + what, remedy);
}

}  // namespace ditto
