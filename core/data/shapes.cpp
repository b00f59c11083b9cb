#include "core/data/shapes.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include <ditto/error.h>
#include <ditto/options.h>
#include <ditto/text.h>

#include "core/data/names.h"
#include "core/formats/text/json.h"

namespace ditto {

nlohmann::json json_of(const TensorSpecs& specs) {
  auto list = nlohmann::json::array();
  for (const auto& spec : specs) {
    list.push_back(
        {{"name", spec.name}, {"dtype", static_cast<int>(spec.dtype)}, {"shape", spec.shape}, {"range", spec.range}});
    if (spec.values > 0) list.back()["values"] = spec.values;
    if (!spec.names.empty()) list.back()["names"] = spec.names;
  }
  return list;
}

TensorSpecs specs_of(const nlohmann::json& list, const std::string& where, ErrorKind kind) {
  TensorSpecs specs;
  for (const auto& one : list) {
    const auto number = one.at("dtype").get<int64_t>();
    if (number < 0 || number >= static_cast<int64_t>(at::ScalarType::Undefined))
      throw Error(kind, where, "the model's shapes cannot be read: " + std::to_string(number) + " is no dtype");
    specs.push_back({one.at("name").get<std::string>(), static_cast<at::ScalarType>(number),
                     one.at("shape").get<std::vector<int64_t>>(), one.at("range").get<std::string>()});
    specs.back().values = one.value("values", int64_t{0});
    specs.back().names = one.value("names", std::vector<std::string>{});
  }
  return specs;
}

namespace {

// Earlier checkpoints name the model's shapes one by one.
ModelNeeds needs_of_before(const nlohmann::json& json) {
  ModelNeeds needs;
  needs.inputs = {{names::kInput, at::kFloat, json.at("x").get<std::vector<int64_t>>(), ""},
                  {names::kInputTime, at::kFloat, {}, ""}};
  if (const auto classes = json.at("classes").get<int64_t>(); classes > 0)
    needs.inputs.push_back({names::kLabel, at::kLong, {}, "", classes});
  if (const auto width = json.at("text_width").get<int64_t>(); width > 0) {
    needs.inputs.push_back({names::kText, at::kFloat, {-1, width}, ""});
    needs.inputs.push_back({std::string(names::kText) + names::kMask, at::kBool, {-1}, ""});
  }
  return needs;
}

bool fits(const TensorSpec& made, const TensorSpec& taken) {
  if (made.dtype != taken.dtype) return false;
  if (taken.shape == kAnyShape) return true;
  if (made.shape.size() != taken.shape.size()) return false;
  for (size_t d = 0; d < made.shape.size(); ++d)
    if (made.shape[d] >= 0 && taken.shape[d] >= 0 && made.shape[d] != taken.shape[d]) return false;
  // An index beyond those that are known would be read from behind the end of a table.
  return made.values == 0 || taken.values == 0 || made.values <= taken.values;
}

}  // namespace

std::string to_text(const SavedShapes& shapes) {
  return nlohmann::json{{"inputs", json_of(shapes.model.inputs)},
                        {"out_channels", shapes.model.out_channels},
                        {"data", json_of(shapes.data)}}
      .dump();
}

SavedShapes saved_shapes(const std::string& text, const std::string& where) {
  const auto json = formats::parse_json(text, where, ErrorKind::checkpoint);
  try {
    SavedShapes shapes;
    if (json.contains("inputs"))
      shapes.model.inputs = specs_of(json.at("inputs"), where);
    else
      shapes.model = needs_of_before(json);
    shapes.model.out_channels = json.at("out_channels").get<int64_t>();
    shapes.data = specs_of(json.at("data"), where);
    return shapes;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorKind::checkpoint, where, "the model's shapes cannot be read: " + formats::plain_reason(error));
  }
}

std::string OtherNames::text(const std::string& of_one, const std::string& of_other) const {
  return "\"" + tensor + "\" " + std::to_string(apart.number) + " is called \"" + shown(apart.name) + "\" " + of_one +
         ", and \"" + shown(apart.other) + "\" " + of_other;
}

std::optional<OtherNames> other_names(const TensorSpecs& one, const TensorSpecs& other) {
  std::optional<OtherNames> found;
  for (const auto& spec : one) {
    const auto* also = find(other, spec.name);
    const auto apart =
        also && also->values == spec.values ? formats::names_apart(spec.names, also->names) : std::nullopt;
    if (apart && (apart->is_elsewhere || !found)) found = OtherNames{spec.name, *apart};
    if (apart && apart->is_elsewhere) break;
  }
  return found;
}

void TensorFlow::make(const std::string& who, const std::string& where, const TensorSpecs& specs) {
  for (const auto& spec : specs) {
    const auto at = std::find_if(made_.begin(), made_.end(), [&](const Made& m) { return m.spec.name == spec.name; });
    if (at != made_.end())
      throw Error(ErrorKind::config, where, who + " makes \"" + spec.name + "\", and so does " + at->by,
                  "leave one of them out");
    made_.push_back({spec, who, is_text(spec)});
  }
}

void TensorFlow::take(const std::string& who, const std::string& where, const TensorSpecs& specs) const {
  for (const auto& spec : specs) {
    const auto at = std::find_if(made_.begin(), made_.end(), [&](const Made& m) { return m.spec.name == spec.name; });
    if (at == made_.end())
      throw Error(ErrorKind::config, where, who + " takes \"" + spec.name + "\", and nobody makes it",
                  "there is only: " + text() + "; choose data, an encoder or an objective that makes it");
    if (!fits(at->spec, spec))
      throw Error(ErrorKind::config, where,
                  who + " takes " + to_text(spec) + ", and " + at->by + " makes " + to_text(at->spec),
                  "choose parts that agree, or their options");
  }
}

void TensorFlow::encode(const std::string& who, const std::string& where, const TensorSpecs& takes,
                        const TensorSpecs& makes) {
  take(who, where, takes);
  bool of_texts = !takes.empty();
  for (auto& made : made_) {
    if (!find(takes, made.spec.name)) continue;
    made.encoded = true;
    of_texts = of_texts && made.of_texts;
  }
  std::erase_if(made_, [](const Made& made) { return made.encoded && !is_text(made.spec); });
  const auto before = made_.size();
  make(who, where, makes);
  for (size_t i = before; i < made_.size(); ++i) made_[i].of_texts = of_texts;
}

TensorSpecs TensorFlow::end_encoders() {
  std::erase_if(made_, [](const Made& made) { return made.encoded; });
  const auto specs = this->specs();
  std::vector<Made> empty;
  for (const auto& made : made_) {
    if (!made.of_texts || is_text(made.spec)) continue;
    empty.push_back(made);
    empty.back().spec.name = names::empty(made.spec.name);
  }
  std::erase_if(empty, [&](const Made& one) { return find(specs, one.spec.name) != nullptr; });
  TensorSpecs offered;
  for (auto& one : empty) {
    offered.push_back(one.spec);
    made_.push_back(std::move(one));
  }
  return offered;
}

std::string TensorFlow::text() const {
  std::string list;
  for (const auto& made : made_) list += (list.empty() ? "" : ", ") + made.spec.name + " (" + made.by + ")";
  return list.empty() ? "nothing" : list;
}

TensorSpecs TensorFlow::specs() const {
  TensorSpecs list;
  for (const auto& made : made_) list.push_back(made.spec);
  return list;
}

}  // namespace ditto
