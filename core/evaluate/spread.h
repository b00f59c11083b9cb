// A mean over held-out samples, and how sure it is.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace ditto {

struct Spread {
  std::optional<double> mean;   // none: no sample counted
  std::optional<double> error;  // the standard error of the mean over samples; none: there is one sample alone
  double freedom = std::numeric_limits<double>::infinity();  // degrees of it, of the error's own estimate
  // On each side of the mean, that 19 of 20 sets of samples lie within: by Student's distribution, as of few samples
  // the error is itself a guess.
  std::optional<double> half_width() const;
};

// Measurement i is of stratum i modulo `strata`; none: it did not count. What every sample has at a level of noise is
// no chance: only samples are.
// Of one stratum.
Spread spread_of_stratum(const std::vector<std::optional<double>>& measured, int64_t stratum, int64_t strata);
// Of all, without its mean: where each sample is seen at each stratum, over the samples' own means; else strata are
// drawn apart, and the variances of their means add up by the squares of their shares, and the degrees of freedom by
// Welch and Satterthwaite.
Spread spread_of_all(const std::vector<std::optional<double>>& measured, int64_t strata, bool each);

}  // namespace ditto
