#include "core/sample/conditions.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>
#include <torch/types.h>

#include <ditto/error.h>
#include <ditto/options.h>
#include <ditto/text.h>

#include "core/checkpoint/tensor_file.h"
#include "core/data/names.h"
#include "core/formats/names.h"
#include "core/formats/tensor/npz.h"

namespace ditto {

using torch::Tensor;

namespace {

constexpr std::string_view kNumber = "number:";

std::string names_of(const TensorSpecs& specs) {
  std::string text;
  for (const auto& spec : specs) text += (text.empty() ? "" : ", ") + to_text(spec);
  return text.empty() ? "no conditions" : text;
}

std::string text_of(const std::string& name, const Tensor& rows) {
  return to_text(TensorSpec{name, rows.scalar_type(), rows.sizes().vec()});
}

// The same one, of samples: their rows come first.
std::string expected(const TensorSpec& spec) {
  if (spec.shape == kAnyShape) return std::string(c10::toString(spec.dtype)) + " of any shape, a row a sample first";
  auto rows = spec;
  rows.shape.insert(rows.shape.begin(), -1);
  return to_text(rows) + ", a row a sample first" + (spec.range.empty() ? "" : ": " + spec.range);
}

bool is_index(at::ScalarType dtype) { return at::isIntegralType(dtype, /*includeBool=*/false); }

bool fits(const TensorSpec& spec, const Tensor& rows) {
  const bool same_kind = rows.scalar_type() == spec.dtype ||
                         (rows.is_floating_point() && at::isFloatingType(spec.dtype)) ||
                         (is_index(rows.scalar_type()) && is_index(spec.dtype));
  if (!same_kind || rows.dim() == 0) return false;
  if (spec.shape == kAnyShape) return true;
  if (rows.dim() != static_cast<int64_t>(spec.shape.size()) + 1) return false;
  for (size_t d = 0; d < spec.shape.size(); ++d)
    if (spec.shape[d] >= 0 && rows.size(static_cast<int64_t>(d) + 1) != spec.shape[d]) return false;
  return true;
}

void check(const std::string& path, const TensorSpec& spec, const Tensor& rows) {
  const auto refuse = [&](const std::string& what, const std::string& remedy) {
    throw Error(ErrorKind::data, path, what, remedy);
  };
  if (!fits(spec, rows)) refuse("has " + text_of(spec.name, rows), "the model takes " + expected(spec));
  if (rows.numel() == 0) refuse(text_of(spec.name, rows) + " is empty", "give a row for each sample, or one for all");
  if (rows.is_floating_point() && !torch::isfinite(rows.to(torch::kDouble)).all().item<bool>())
    refuse("\"" + spec.name + "\" holds numbers that are not finite", "correct what wrote it");
  if (spec.values == 0 || !is_index(rows.scalar_type())) return;
  const auto numbers = rows.to(torch::kLong);
  for (const int64_t number : {numbers.min().item<int64_t>(), numbers.max().item<int64_t>()})
    if (number < 0 || number >= spec.values)
      refuse("\"" + spec.name + "\" holds " + std::to_string(number),
             "its values are 0 to " + std::to_string(spec.values - 1));
}

// Of a file of `ditto sample`, which `--pass` or `--save-latents` wrote.
std::string request_of(const std::string& path, const NamedTensors& tensors) {
  const auto file = formats::SafetensorsReader::open(path, ErrorKind::data);
  const auto& metadata = file.metadata();
  const auto request = metadata.find("request"), crc32 = metadata.find("crc32");
  if (request == metadata.end() || crc32 == metadata.end() || tensors.size() != 1) return {};
  if (fmt::format("{:08x}", formats::crc32(bytes_of(tensors.begin()->second))) == crc32->second) return request->second;
  throw Error(ErrorKind::data, path, "was changed since `ditto sample` wrote it",
              "make it anew, or write changed tensors without its metadata");
}

}  // namespace

ConditionFile::ConditionFile(std::string path, const TensorSpecs& takes) : path_(std::move(path)) {
  auto tensors = read_tensors(path_);
  request_ = request_of(path_, tensors);
  read(takes, std::move(tensors));
  if (tensors_.empty()) throw Error(ErrorKind::data, path_, "has no tensors", "the model takes " + names_of(takes));
}

ConditionFile::ConditionFile(std::string path, const TensorSpecs& takes, const ConditionFile& others)
    : path_(std::move(path)) {
  auto tensors = read_tensors(path_);
  std::erase_if(tensors, [&](const auto& one) { return !find(takes, one.first) || others.tensors().count(one.first); });
  read(takes, std::move(tensors));
}

ConditionFile::ConditionFile(std::string who, std::map<std::string, Tensor> tensors, const TensorSpecs& takes)
    : path_(std::move(who)) {
  read(takes, std::move(tensors));
}

void ConditionFile::read(const TensorSpecs& takes, std::map<std::string, Tensor> tensors) {
  for (const auto& [name, rows] : tensors) {
    const auto* spec = find(takes, name);
    if (!spec)
      throw Error(ErrorKind::data, path_, "has \"" + shown(name) + "\", which the model does not take",
                  "it takes " + names_of(takes));
    check(path_, *spec, rows);
    tensors_[name] = rows.to(spec->dtype);
    if (rows.size(0) == 1) continue;
    if (rows_ != 1 && rows.size(0) != rows_)
      throw Error(
          ErrorKind::data, path_,
          "\"" + name + "\" has " + std::to_string(rows.size(0)) + " rows, and others have " + std::to_string(rows_),
          "give a row for each sample, or one for all");
    rows_ = rows.size(0);
  }
  for (const auto& spec : takes) {
    const auto mask_name = spec.name + names::kMask;
    const auto* mask = find(takes, mask_name);
    if (!mask || !tensors_.count(spec.name)) continue;
    const auto& rows = tensors_.at(spec.name);
    if (!tensors_.count(mask_name)) tensors_[mask_name] = torch::ones({rows.size(0), rows.size(1)}, mask->dtype);
    if (tensors_.at(mask_name).size(1) != rows.size(1))
      throw Error(ErrorKind::data, path_,
                  "has " + text_of(spec.name, rows) + " and " + text_of(mask_name, tensors_.at(mask_name)),
                  "their lengths must agree");
  }
}

void give_rows(const std::string& who, const std::map<std::string, Tensor>& tensors, int64_t count, Batch& conditions) {
  for (const auto& [name, rows] : tensors) {
    if (rows.size(0) != 1 && rows.size(0) != count)
      throw Error(ErrorKind::data, who,
                  "has " + std::to_string(rows.size(0)) + " rows, and --seeds ask for " + std::to_string(count) +
                      (count == 1 ? " sample" : " samples"),
                  "give as many seeds as rows, or one row for all");
    auto shape = rows.sizes().vec();
    shape[0] = count;
    if (!conditions.tensors.emplace(name, rows.expand(shape)).second)
      throw Error(ErrorKind::config, who, "gives \"" + name + "\", which is given already",
                  "leave --classes or --prompts out, or the tensor");
  }
}

int64_t class_called(const std::string& word, const TensorSpec& label, const std::string& where,
                     const std::string& option) {
  const auto refuse = [&](const std::string& what, const std::string& remedy) {
    throw Error(ErrorKind::config, where, option + " is \"" + shown(word) + "\", " + what, remedy);
  };
  const auto& called = label.names;
  const auto numbers =
      "its classes are 0 to " + std::to_string(label.values - 1) +
      (called.empty() ? "" : ", \"" + shown(called.front()) + "\" to \"" + shown(called.back()) + "\"");
  if (const auto first = std::find(called.begin(), called.end(), word); first != called.end()) {
    if (std::find(first + 1, called.end(), word) != called.end())
      refuse("which is more than one class",
             "give \"" + std::string(kNumber) + std::to_string(first - called.begin()) + "\", or that of the other");
    return first - called.begin();
  }
  const bool by_number = word.starts_with(kNumber);
  const auto digits = by_number ? std::string_view(word).substr(kNumber.size()) : std::string_view(word);
  int64_t number = -1;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const bool is_number = code == std::errc() && end == digits.data() + digits.size();
  if (!is_number || number < 0 || number >= label.values) {
    const auto near = nearest(word, called);
    refuse("which is no class of this model", near.empty() ? numbers : "did you mean \"" + near + "\"? " + numbers);
  }
  const auto is_numeral = [](const std::string& name) { return formats::number_of_name(name).has_value(); };
  if (!by_number && std::any_of(called.begin(), called.end(), is_numeral))
    refuse("and this model's classes are called by numbers, but none is called so",
           "name one as it is called, or give \"" + std::string(kNumber) + word + "\" for the number");
  return number;
}

void require_all(const std::string& model, const TensorSpecs& takes, const Batch& conditions,
                 const TensorSpecs& encoded) {
  const auto of_empty_text = [&](const TensorSpec& spec) {
    return std::any_of(takes.begin(), takes.end(),
                       [&](const TensorSpec& other) { return names::empty(other.name) == spec.name; });
  };
  for (const auto& spec : takes) {
    if (conditions.has(spec.name) || find(encoded, spec.name)) continue;
    const bool is_empty_text = of_empty_text(spec);
    throw Error(ErrorKind::config, "model \"" + model + "\"",
                "takes " + to_text(spec) + (is_empty_text ? ", the empty text that guidance leads away from" : "") +
                    ", and nobody gave it",
                "give it in --condition FILE.safetensors, a row a sample or one for all" +
                    std::string(spec.name == names::kText ? "; --prompts need an encoder of text" : "") +
                    (is_empty_text ? "; an encoder of texts makes it by itself" : ""));
  }
}

}  // namespace ditto
