#include <ditto/nn/split.h>

#include <utility>

namespace ditto {

Split Split::heads(std::vector<int64_t> counts, int64_t head_width) {
  for (int64_t& count : counts) count *= head_width;
  Split split = columns(std::move(counts)).in_units(head_width);
  split.are_heads = true;
  return split;
}

Split Split::gathered() const {
  Split copy = of_condition();
  copy.gather = true;
  return copy;
}

Split Split::of_condition() const {
  Split copy = *this;
  copy.condition = true;
  return copy;
}

Split Split::in_parts(std::vector<int64_t> widths) const {
  Split copy = *this;
  copy.parts = std::move(widths);
  return copy;
}

Split Split::in_units(int64_t width) const {
  Split copy = *this;
  copy.unit = width;
  return copy;
}

Split Split::of(const std::string& name) const {
  Split copy = *this;
  copy.sequence = name;
  return copy;
}

}  // namespace ditto
