#include "core/verify/prints.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "core/formats/sha256.h"

namespace ditto {

namespace {

const Print* find(const std::vector<Print>& all, const std::string& what) {
  const auto at = std::find_if(all.begin(), all.end(), [&](const Print& one) { return one.what == what; });
  return at == all.end() ? nullptr : &*at;
}

}  // namespace

void Prints::add(std::int64_t order, const std::string& what, const HashSum& hash) {
  const auto at = std::find_if(all_.begin(), all_.end(), [&](const Print& one) { return one.what == what; });
  if (at == all_.end())
    all_.push_back({order, what, hash});
  else
    at->hash += hash;
}

std::string Prints::digest() const {
  if (all_.empty()) return {};
  std::string text;
  for (const auto& one : all_) text += one.what + " " + one.hash.text() + "\n";
  return formats::sha256(text);
}

const Print* Prints::first_difference(const Prints& other) const {
  const Print* first = nullptr;
  for (const auto& one : all_) {
    const auto* theirs = find(other.all_, one.what);
    if ((!theirs || theirs->hash != one.hash) && (!first || one.order < first->order)) first = &one;
  }
  return first;
}

void to_json(nlohmann::json& json, const Prints& prints) {
  json = nlohmann::json::array();
  for (const auto& one : prints.all()) json.push_back({one.order, one.what, one.hash.lanes});
}

void from_json(const nlohmann::json& json, Prints& prints) {
  prints.clear();
  for (const auto& one : json)
    prints.add(one.at(0).get<std::int64_t>(), one.at(1).get<std::string>(),
               HashSum{one.at(2).get<decltype(HashSum::lanes)>()});
}

}  // namespace ditto
