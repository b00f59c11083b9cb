#include "core/evaluate/spread.h"

#include <boost/math/distributions/students_t.hpp>
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
  return {mean(numbers), root(variance_of_mean(numbers)), static_cast<double>(numbers.size()) - 1};
}

Spread spread_of_all(const std::vector<std::optional<double>>& measured, int64_t strata, bool each) {
  if (each) {
    const auto means = means_of_samples(measured, strata);
    return {{}, root(variance_of_mean(means)), static_cast<double>(means.size()) - 1};
  }
  double count = 0, sum = 0, of_squares = 0;
  for (const auto& one : measured) count += one.has_value();
  for (int64_t k = 0; k < strata; ++k) {
    const auto numbers = of_stratum(measured, k, strata);
    if (numbers.empty()) continue;
    const auto variance = variance_of_mean(numbers);
    if (!variance) return {};  // of one sample nobody knows how far others lie
    const auto own = static_cast<double>(numbers.size());
    const double part = own / count * (own / count) * *variance;
    sum += part;
    of_squares += part * part / (own - 1);
  }
  if (count == 0) return {};
  return {{}, std::sqrt(sum), sum > 0 ? sum * sum / of_squares : count - 1};
}

std::optional<double> Spread::half_width() const {
  if (!error) return {};
  constexpr double kOutside = 0.025;  // on each side
  return *error * boost::math::quantile(boost::math::complement(boost::math::students_t(freedom), kOutside));
}

}  // namespace ditto
