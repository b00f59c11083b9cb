#include "core/evaluate/spread.h"

#include <cmath>

namespace ditto {

namespace {

using Numbers = std::vector<double>;

Numbers of_stratum(const std::vector<std::optional<double>>& measured, int64_t stratum, int64_t strata) {
  Numbers numbers;
  for (auto i = static_cast<size_t>(stratum); i < measured.size(); i += static_cast<size_t>(strata))
    if (measured[i]) numbers.push_back(*measured[i]);
  return numbers;
}

double mean(const Numbers& numbers) {
  double sum = 0;
  for (const double one : numbers) sum += one;
  return sum / static_cast<double>(numbers.size());
}

// Of the mean, estimated.
std::optional<double> variance_of_mean(const Numbers& numbers) {
  if (numbers.size() < 2) return {};
  const double middle = mean(numbers);
  double squares = 0;
  for (const double one : numbers) squares += (one - middle) * (one - middle);
  const auto count = static_cast<double>(numbers.size());
  return squares / (count - 1) / count;
}

std::optional<double> root(const std::optional<double>& variance) {
  return variance ? std::optional(std::sqrt(*variance)) : std::nullopt;
}

// A sample counts at all strata or at none.
Numbers means_of_samples(const std::vector<std::optional<double>>& measured, int64_t strata) {
  Numbers means;
  for (size_t first = 0; first < measured.size(); first += static_cast<size_t>(strata)) {
    if (!measured[first]) continue;
    Numbers own;
    for (size_t i = first; i < first + static_cast<size_t>(strata); ++i) own.push_back(*measured[i]);
    means.push_back(mean(own));
  }
  return means;
}

}  // namespace

Spread spread_of_stratum(const std::vector<std::optional<double>>& measured, int64_t stratum, int64_t strata) {
  const auto numbers = of_stratum(measured, stratum, strata);
  if (numbers.empty()) return {};
  return {mean(numbers), root(variance_of_mean(numbers))};
}

std::optional<double> error_of_all(const std::vector<std::optional<double>>& measured, int64_t strata, bool each) {
  if (each) return root(variance_of_mean(means_of_samples(measured, strata)));
  double count = 0, sum = 0;
  for (const auto& one : measured) count += one.has_value();
  for (int64_t k = 0; k < strata; ++k) {
    const auto numbers = of_stratum(measured, k, strata);
    if (numbers.empty()) continue;
    const auto variance = variance_of_mean(numbers);
    if (!variance) return {};  // of one sample nobody knows how far others lie
    const double share = static_cast<double>(numbers.size()) / count;
    sum += share * share * *variance;
  }
  return count > 0 ? std::optional(std::sqrt(sum)) : std::nullopt;
}

}  // namespace ditto
