// As loader_places_slow_test.cpp, at four places of 117.
#include "tests/unit/data/loader_places.h"

TEST_CASE("a loader goes on at some places as the one that was not interrupted") {
  ditto::test::places::check_cuts_of_all(ditto::test::places::one_source(), {0, 41, 117 - 9, 116});
  ditto::test::places::check_cuts_of_all(ditto::test::places::nested_blend(), {0, 41, 117 - 9, 116});
}
