#include "core/data/blend.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <ditto/error.h>
#include <ditto/text.h>

#include "core/data/encoded_set.h"
#include "core/data/held_out.h"

namespace ditto {

namespace {

constexpr double kMillionth = 1e-6;

// Of a picture, or a video, all but the channels.
bool may_be_own(const TensorSpec& spec, size_t dim) {
  return spec.shape.size() >= 3 && dim > 0 && spec.shape[dim] != -1;
}

// How the two differ in what a batch cannot mix; "": they do not.
std::string why_apart(const TensorSpec& a, const TensorSpec& b) {
  if (a.name != b.name || a.dtype != b.dtype || a.shape.size() != b.shape.size() || a.values != b.values)
    return to_text(a) + " and " + to_text(b);
  for (size_t d = 0; d < a.shape.size(); ++d)
    if (a.shape[d] != b.shape[d] && !(may_be_own(a, d) && may_be_own(b, d))) return to_text(a) + " and " + to_text(b);
  if (a.turns_with_image != b.turns_with_image) return "\"" + a.name + "\" that does not turn with \"image\" alike";
  if (a.names != b.names && !a.names.empty() && !b.names.empty()) return "\"" + a.name + "\" with other names";
  return {};
}

}  // namespace

Blend::Blend(std::vector<Part> parts) : parts_(std::move(parts)) {
  first_.push_back(0);
  for (const auto& part : parts_) {
    first_.push_back(first_.back() + part.source->size());
    ordered_.parts.push_back(ditto::ordered(*part.source));
  }
  ordered_.samples = first_.back();
  join_specs();
  set_shares();
}

void Blend::join_specs() {
  specs_ = parts_.front().source->makes();
  for (const auto& part : parts_) {
    const auto own = part.source->makes();
    std::string apart;
    for (auto& spec : specs_) {
      const auto* other = ditto::find(own, spec.name);
      apart = other ? why_apart(spec, *other) : to_text(spec) + ", and nothing of that name";
      if (!apart.empty()) break;
      for (size_t d = 0; d < spec.shape.size(); ++d)
        if (spec.shape[d] != other->shape[d]) spec.shape[d] = kOwnSide;
      if (spec.names.empty()) spec.names = other->names;
    }
    for (const auto& spec : own)
      if (apart.empty() && !ditto::find(specs_, spec.name))
        apart = "nothing called \"" + spec.name + "\", and " + to_text(spec);
    if (!apart.empty())
      throw Error(ErrorKind::config, part.section,
                  "it cannot be blended with " + parts_.front().section + ", which makes another sample: " + apart,
                  "set the parts' options so that all make the same tensors");
  }
}

void Blend::set_shares() {
  const bool weighed = parts_.front().weight > 0;
  int64_t divisor = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const auto& part = parts_[i];
    if ((part.weight > 0) != weighed)
      throw Error(ErrorKind::config, part.section + ".weight",
                  weighed ? "is not there, and the first part has one" : "is there, and the first part has none",
                  "give all parts of a blend a weight, or all of them epochs");
    const auto millionths = std::llround((weighed ? part.weight : part.epochs) / kMillionth);
    auto& share = ordered_.parts[i].share;
    share = weighed ? millionths : 0;
    if (!weighed && __builtin_mul_overflow(millionths, part.source->size(), &share))
      throw Error(ErrorKind::config, part.section + ".epochs",
                  "of " + std::to_string(part.source->size()) + " samples are more than can be counted", "lower it");
    divisor = std::gcd(divisor, share);
  }
  for (auto& part : ordered_.parts) part.share /= std::max<int64_t>(divisor, 1);  // 0: nothing is there to be read
}

std::pair<size_t, int64_t> Blend::find(int64_t index) const {
  const auto above = std::upper_bound(first_.begin(), first_.end(), index);
  const auto part = static_cast<size_t>(above - first_.begin()) - 1;
  return {part, index - first_.at(part)};
}

Sample Blend::read(int64_t index) const {
  const auto [part, own] = find(index);
  return parts_.at(part).source->read(own);
}

// Sides that are the sample's own here may be all alike in its part, which then need not tell them.
SampleInfo Blend::info(int64_t index) const {
  const auto [part, own] = find(index);
  auto shapes = parts_.at(part).source->info(own);
  for (const auto& spec : parts_.at(part).source->makes())
    if (std::all_of(spec.shape.begin(), spec.shape.end(), [](int64_t side) { return side >= 0; }))
      shapes.emplace(spec.name, spec.shape);
  return shapes;
}

std::vector<std::string> Blend::warnings() const {
  std::vector<std::string> all;
  for (const auto& part : parts_)
    for (auto& warning : part.source->warnings()) all.push_back(std::move(warning));
  return all;
}

std::vector<std::string> Blend::notes() const {
  std::vector<std::string> all;
  for (size_t i = 0; i < parts_.size(); ++i) {
    for (auto& note : parts_[i].source->notes()) all.push_back(parts_[i].section + ": " + note);
    for (size_t j = 0; j < i; ++j)
      if (const auto both = in_both(parts_[j].source->holds(), parts_[i].source->holds()); both.count > 0)
        all.push_back(parts_[j].section + " and " + parts_[i].section + " both read " + shown(both.first) +
                      (both.count > 1 ? " and " + std::to_string(both.count - 1) + " more" : "") +
                      ": its samples come for each of them");
  }
  return all;
}

std::vector<std::string> Blend::holds() const {
  std::vector<std::string> all;
  for (const auto& part : parts_)
    for (auto& word : part.source->holds()) all.push_back(std::move(word));
  return all;
}

std::string Blend::fingerprint() const {
  std::string text = "blend";
  for (size_t i = 0; i < parts_.size(); ++i)
    text += (i == 0 ? " of " : ", ") + std::to_string(ordered_.parts[i].share) + " (" +
            parts_[i].source->fingerprint() + ")";
  return text;
}

Ordered ordered(const Source& source) {
  if (const auto* encoded = dynamic_cast<const EncodedSet*>(&source)) return encoded->ordered();
  const auto* blend = dynamic_cast<const Blend*>(&source);
  return blend ? blend->ordered() : Ordered{source.size()};
}

}  // namespace ditto
