#include <doctest/doctest.h>

#include "core/train/validation.h"

namespace ditto {
namespace {

TEST_CASE("auto sees each sample at each stratum where there are fewer than eight samples a stratum") {
  ValidateOptions options;
  CHECK(sees_each_stratum(options, 1));
  CHECK(sees_each_stratum(options, 63));
  CHECK_FALSE(sees_each_stratum(options, 64));
  options.strata = "one";
  CHECK_FALSE(sees_each_stratum(options, 1));
  options.strata = "each";
  CHECK(sees_each_stratum(options, 1'000'000));
}

}  // namespace
}  // namespace ditto
