// How long a table's fingerprint takes, which every rank makes when it starts.
#include <doctest/doctest.h>

#include <chrono>

#include <ditto/data.h>

#include "tests/support/files.h"
#include "tests/support/open_plugin.h"

TEST_CASE("the fingerprint of a table of 10,000 files takes two seconds at most") {
  constexpr int kFiles = 10'000;
  const ditto::test::TemporaryFolder folder;
  const std::string picture(12 << 10, 'x');  // what it holds is not looked at
  std::string rows = "path\n";
  for (int i = 0; i < kFiles; ++i) {
    const auto name = std::to_string(i) + ".png";
    ditto::test::write_text(folder / name, picture.substr(static_cast<size_t>(i % 4096)));
    rows += name + "\n";
  }
  ditto::test::write_text(folder / "t.csv", rows);
  const auto source = ditto::test::make_plugin<ditto::Source>(
      "data", "table", {{"table", "t.csv"}, {"size", std::vector<int64_t>{8, 8}}}, {.folder = folder.path().string()});
  REQUIRE(source->size() == kFiles);
  const auto began = std::chrono::steady_clock::now();
  CHECK(source->fingerprint().find(", files ") != std::string::npos);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  MESSAGE("10,000 files: " << seconds << " s");
  CHECK(seconds < 2);
}
