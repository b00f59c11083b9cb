// A position in the data is one number: whatever the place of the cut, a loader that starts there goes on as the one
// that was not interrupted, on any number of ranks and threads.
#include "tests/unit/loader_places.h"

#include <numeric>

namespace {

std::vector<int64_t> every_place_of_117() {
  std::vector<int64_t> places(ditto::test::places::kSamples);
  std::iota(places.begin(), places.end(), int64_t{0});
  return places;
}

}  // namespace

TEST_CASE("a loader goes on at every place as the one that was not interrupted: one source") {
  ditto::test::places::check_cuts_of_all(ditto::test::places::one_source(), every_place_of_117());
}

TEST_CASE("a loader goes on at every place as the one that was not interrupted: a blend in a blend") {
  ditto::test::places::check_cuts_of_all(ditto::test::places::nested_blend(), every_place_of_117());
}
