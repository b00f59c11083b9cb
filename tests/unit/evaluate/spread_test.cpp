// Claim (numbers): The interval of a validation is of what chance chose, the samples: what sets levels of noise
// apart is none of it, whether each sample is seen at one of them or at each.
#include "core/evaluate/spread.h"

#include <doctest/doctest.h>

#include <cmath>

namespace ditto {
namespace {

using Measured = std::vector<std::optional<double>>;

TEST_CASE("a stratum's mean and error are of its own measurements") {
  const Measured measured{1, 10, 2, 20, 6, 30};  // two strata
  const auto low = spread_of_stratum(measured, 0, 2), high = spread_of_stratum(measured, 1, 2);
  CHECK(*low.mean == 3);
  CHECK(*low.error == doctest::Approx(std::sqrt(7.0 / 3)));                    // variance 7 of one, over three
  CHECK(*low.half_width() == doctest::Approx(4.302653 * std::sqrt(7.0 / 3)));  // Student's, of two degrees of freedom
  CHECK(*high.mean == 20);
  CHECK(*high.error == doctest::Approx(10 / std::sqrt(3.0)));
}

TEST_CASE("what did not count is left out, and one sample has no error") {
  const Measured measured{1, std::nullopt, 3, 5};
  CHECK(*spread_of_stratum(measured, 1, 2).mean == 5);
  CHECK_FALSE(spread_of_stratum(measured, 1, 2).error);
  CHECK_FALSE(spread_of_stratum(measured, 1, 2).half_width());
  CHECK_FALSE(spread_of_stratum({std::nullopt, 4}, 0, 2).mean);
  CHECK_FALSE(spread_of_all(measured, 2, false).error);  // how far others of the second lie nobody knows
  CHECK_FALSE(spread_of_all({std::nullopt, std::nullopt}, 2, false).error);
  CHECK_FALSE(spread_of_all({std::nullopt, std::nullopt}, 2, true).error);
}

TEST_CASE("strata that are far apart make the error of all no larger") {
  const Measured near{1, 1, 3, 3}, far{1, 1001, 3, 1003};
  CHECK(*spread_of_all(near, 2, false).error == doctest::Approx(*spread_of_all(far, 2, false).error));
  CHECK(*spread_of_all(near, 2, true).error == doctest::Approx(*spread_of_all(far, 2, true).error));
  CHECK(*spread_of_all(far, 2, false).error ==
        doctest::Approx(std::sqrt(0.25 * 1 + 0.25 * 1)));           // each stratum: error 1
  CHECK(*spread_of_all(far, 2, true).error == doctest::Approx(1));  // samples: 501 and 503
}

TEST_CASE("of few samples the interval is wider than a normal distribution's") {
  CHECK(*Spread{0, 1, 1}.half_width() == doctest::Approx(12.706205));
  CHECK(*Spread{0, 1}.half_width() == doctest::Approx(1.959964));
  CHECK(spread_of_all({1, 1, 3, 3}, 2, true).freedom == 1);
  CHECK(spread_of_all({1, 1, 3, 3}, 2, false).freedom ==
        doctest::Approx(2));  // Welch and Satterthwaite, of equal variances
}

TEST_CASE("a stratum with more samples weighs by its share") {
  const Measured measured{1, 2, 3, 6, 5};  // 1 3 5, and 2 6
  const double error = *spread_of_all(measured, 2, false).error;
  CHECK(error == doctest::Approx(std::sqrt(0.36 * 4 / 3 + 0.16 * 8 / 2)));
}

TEST_CASE("where each sample is seen at each stratum, one that did not count is left out whole") {
  const Measured measured{1, 3, std::nullopt, std::nullopt, 3, 5};
  CHECK(*spread_of_all(measured, 2, true).error == doctest::Approx(1));  // 2 and 4
}

}  // namespace
}  // namespace ditto
