// A mean over held-out samples, and how sure it is.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace ditto {

// Standard errors on each side of a mean that 19 of 20 sets of samples lie within.
inline constexpr double kInterval = 1.96;

struct Spread {
  std::optional<double> mean;   // none: no sample counted
  std::optional<double> error;  // the standard error of the mean over samples; none: there is one sample alone
  std::optional<double> half_width() const { return error ? std::optional(kInterval * *error) : std::nullopt; }
};

// Measurement i is of stratum i modulo `strata`; none: it did not count. What every sample has at a level of noise is
// no chance: only samples are.
// Of one stratum.
Spread spread_of_stratum(const std::vector<std::optional<double>>& measured, int64_t stratum, int64_t strata);
// Of all: where each sample is seen at each stratum, over the samples' own means; else strata are drawn apart, and the
// variances of their means add up by the squares of their shares.
std::optional<double> error_of_all(const std::vector<std::optional<double>>& measured, int64_t strata, bool each);

}  // namespace ditto
