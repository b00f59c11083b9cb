// A position in the data is one number: whatever the place of the cut, a loader that starts there goes on as the one
// that was not interrupted, on any number of ranks and threads.
//
// Claim (data): A loader that starts at any of 117 places goes on with the same ids and keys on 1, 2 and 4 ranks
// with 0 and 2 threads, shuffled or not, of one source and a blend in a blend, single, in buckets and in packs; at
// place 10^6 of 10^6 samples what is saved has 7 bytes, and the first 32 samples were there 1.3 to 16 ms after an
// indexed set was opened anew (70 times, 20 of them a table, which is read whole when it is opened: 190 ms on an AMD
// EPYC; files in the page cache, on two busy cores of an Intel Xeon; at a low priority beside three other processes
// up to 112 ms). Also: `indexed_restart_slow_test.cpp`
#include "tests/unit/data/loader_places.h"

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
