// The sizes of a source's samples, known without reading them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ditto/data.h>

namespace ditto {

using SampleSize =
    std::vector<int64_t>;  // [rows, columns] or [frames, rows, columns]; empty: all samples have one size
std::string to_text(const SampleSize& size);  // "32x48"

// The sides that are the sample's own (kOwnSide), in the order of the specs. Throws Error(plugin) where the source does
// not tell them.
SampleSize own_sides(const Source& source, const TensorSpecs& specs, int64_t index);

// The same of the data: of a sample that was encoded, of what it is of, so that the same samples are learned from.
SampleSize size_in_data(const Source& source, int64_t index);

// What an epoch is made of. Of more than 16,384 samples as many, evenly spread, are looked at.
struct SizesFound {
  std::vector<SampleSize> learned;  // each once, ascending; none: all samples have one size
  std::string report;  // as the end of a sentence: how many there are of each, and of which none is learned from
};
// `taken`: the sizes that are learned from; empty: all are. Throws Error(config) where it has no sample's size.
SizesFound find_sizes(const Source& source, const std::vector<SampleSize>& taken);

}  // namespace ditto
