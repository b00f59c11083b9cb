#include "core/sample/kept_texts.h"

#include <filesystem>

#include <doctest/doctest.h>
#include <torch/types.h>

#include "tests/support/files.h"

namespace {

using ditto::KeptTexts;
using ditto::NamedTensors;

// Of text i a row of i.
NamedTensors made(int64_t begin, int64_t count) {
  return {{"text", torch::arange(begin, begin + count).to(torch::kFloat).view({count, 1, 1}).repeat({1, 2, 3})}};
}

}  // namespace

TEST_CASE("texts are encoded once, in parts, and found again by whom they are encoded alike") {
  const ditto::test::TemporaryFolder folder;
  const auto place = (std::filesystem::path(folder.path()) / "texts").string();
  KeptTexts first(place, 4);
  // The second and third rows, of the first part; then two of either part; then all.
  for (const auto& [from, count] : {std::pair<int64_t, int64_t>{1, 2}, {3, 2}, {0, 10}}) {
    const auto rows = first.rows("key", from, count, 10, made).at("text");
    CHECK(torch::equal(rows, made(from, count).at("text")));
  }
  CHECK(first.encoded == 10);

  KeptTexts second(place, 4);
  const auto never = [](int64_t, int64_t) -> NamedTensors {
    FAIL("encoded again");
    return {};
  };
  CHECK(torch::equal(second.rows("key", 7, 3, 10, never).at("text"), made(7, 3).at("text")));
  CHECK(second.encoded == 0);
  CHECK(second.found == 6);
  // Of other texts, or of another encoder.
  second.rows("other", 0, 4, 10, made);
  CHECK(second.encoded == 4);
}
