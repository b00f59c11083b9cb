// How fast this processor computes ops on bf16 tensors, by each of two variants.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ditto/kernels.h>

namespace ditto {

// An op's two ways: the variant that is chosen where no row computes in fp32, and the one that does.
struct Ways {
  std::string op, in_bf16, in_fp32;
  bool fp32_by_scores;  // what the rows' own scores choose
};
// Of all ops that have both, found by a call of each.
std::vector<Ways> find_ways(const std::vector<KernelRow>& rows, const std::vector<Op>& added);

// Op -> variant -> calls a second, of one and the same call: forward and backward, by one thread and its
// processor time.
using Rates = std::map<std::string, std::map<std::string, double>>;
void measure(Rates& rates, const Ways& ways, const std::vector<KernelRow>& rows, const std::vector<Op>& added);

// The other way than the scores' has to be so much faster: what is chosen is not to hang on a measurement's noise.
inline constexpr double kClearlyFaster = 1.1;
// Whether the way in fp32 is to be taken; nothing where one of the two has no rate.
std::optional<bool> is_faster_in_fp32(const Rates& rates, const Ways& ways);

// What was measured before on a machine and with libraries like these, in the user's cache.
class RatesFile {
 public:
  RatesFile();
  Rates read() const;  // none where there is no file, or none that can be read: it is a cache
  void write(const Rates& rates) const;

 private:
  std::string machine_, path_;
};

}  // namespace ditto
