#include "core/data/sizes.h"

#include <algorithm>
#include <map>
#include <optional>

#include <ditto/error.h>

#include "core/data/encoded_set.h"

namespace ditto {

namespace {

constexpr int64_t kLookedAt = 1 << 14;

bool has_own_side(const TensorSpec& spec) {
  return std::find(spec.shape.begin(), spec.shape.end(), kOwnSide) != spec.shape.end();
}

}  // namespace

std::string to_text(const SampleSize& size) {
  std::string text;
  for (const int64_t side : size) text += (text.empty() ? "" : "x") + std::to_string(side);
  return text.empty() ? "one size" : text;
}

SampleSize own_sides(const Source& source, const TensorSpecs& specs, int64_t index) {
  SampleSize sides;
  std::optional<SampleInfo> info;
  for (const auto& spec : specs) {
    if (!has_own_side(spec)) continue;
    if (!info) info = source.info(index);
    const auto at = info->find(spec.name);
    if (at == info->end() || at->second.size() != spec.shape.size())
      throw Error(ErrorKind::plugin, "data",
                  "the source makes " + to_text(spec) +
                      " of each sample's own size, and its info() does not tell sample " + std::to_string(index) + "'s",
                  "correct the source's info() or makes()");
    for (size_t d = 0; d < spec.shape.size(); ++d)
      if (spec.shape[d] == kOwnSide) sides.push_back(at->second[d]);
  }
  return sides;
}

SampleSize size_in_data(const Source& source, int64_t index) {
  if (const auto* encoded = dynamic_cast<const EncodedSet*>(&source)) return encoded->sides_of_data(index);
  return own_sides(source, source.makes(), index);
}

SizesFound find_sizes(const Source& source, const std::vector<SampleSize>& taken) {
  const auto specs = specs_before_encoders(source);
  if (std::none_of(specs.begin(), specs.end(), has_own_side)) {
    if (taken.empty()) return {};
    throw Error(ErrorKind::config, "batch.sizes", "chooses among sizes, and all of the data's samples have one",
                "leave it out");
  }
  // A source may have to open a file, or ask a server, for each: of many samples an even part.
  const int64_t all = source.size(), looked_at = std::min(all, kLookedAt);
  std::map<SampleSize, int64_t> counts;
  for (int64_t i = 0; i < looked_at; ++i)
    ++counts[size_in_data(source, all / looked_at * i + all % looked_at * i / looked_at)];
  SizesFound found;
  std::string learned, left_out;
  for (const auto& [size, count] : counts) {
    const bool is_taken = taken.empty() || std::find(taken.begin(), taken.end(), size) != taken.end();
    auto& list = is_taken ? learned : left_out;
    if (is_taken) found.learned.push_back(size);
    list += (list.empty() ? "" : ", ") + std::to_string(count) + " of " + to_text(size);
  }
  if (learned.empty() && looked_at == all)
    throw Error(ErrorKind::config, "batch.sizes", "has none of the sizes of the data's samples: " + left_out,
                "name those that are to be learned from");
  found.report =
      (looked_at == all ? "; sizes: " : "; sizes, of " + std::to_string(looked_at) + " samples looked at: ") +
      (learned.empty() ? "none" : learned) + ", each once an epoch" +
      (left_out.empty() ? "" : "; left out, as batch.sizes does not have them: " + left_out);
  return found;
}

}  // namespace ditto
