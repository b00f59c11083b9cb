#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/evaluate/table.h"

namespace ditto {
namespace {

EvaluationResult result() {
  EvaluationResult made;
  made.seed = 7;
  made.each = true;
  made.held_out = "abc";
  made.rows.push_back({"runs/a/checkpoints/step_00000600",
                       600,
                       9600,
                       "ema",
                       40,
                       {0.125, 0.01},
                       {{0.5, 0.25}, {0.0625, std::nullopt}, {}},
                       {{"denoising", 0.125}},
                       {},
                       1.5});
  made.rows.push_back({"elsewhere/step_00000005",
                       5,
                       80,
                       "weights",
                       40,
                       {std::numeric_limits<double>::infinity(), std::nullopt},
                       {{}, {}, {}},
                       {},
                       {},
                       1});
  return made;
}

TEST_CASE("the table has a row for each of what was measured, and its columns stand in line") {
  std::istringstream lines(to_text(result()));
  std::vector<std::string> all;
  for (std::string line; std::getline(lines, line);) all.push_back(line);
  REQUIRE(all.size() == 5);
  CHECK(all[0].starts_with("run "));
  CHECK(all[0].find("0.1667") != std::string::npos);  // the middle of the first of three
  CHECK(all[1].starts_with("runs/a "));
  for (const char* part : {" 600 ", " ema ", " 40 ", " 0.125000 ±0.019600 ", " 0.5000 ±0.4900 ", " 0.0625 ", " -"})
    CHECK_MESSAGE(all[1].find(part) != std::string::npos, part << " in " << all[1]);
  CHECK(all[2].starts_with("elsewhere/step_00000005 "));
  CHECK(all[3].find("at each of them, noise of seed 7") != std::string::npos);
  const auto end_of = [&](size_t row, const std::string& word) {
    const auto before = all[row].substr(0, all[row].find(word) + word.size());
    return std::count_if(before.begin(), before.end(), [](char c) { return (c & 0xC0) != 0x80; });
  };
  CHECK(end_of(0, "samples") == end_of(1, " 40"));
  CHECK(end_of(0, "loss") == end_of(1, "±0.019600"));
  CHECK(end_of(0, "loss") == end_of(2, "inf"));
}

TEST_CASE("JSON has all digits, the interval, and null for what is no number") {
  const auto json = nlohmann::json::parse(to_json(result()).dump());
  CHECK(json["seed"] == 7);
  CHECK(json["strata"] == "each");
  CHECK(json["held_out"] == "abc");
  const auto& row = json["rows"][0];
  CHECK(row["checkpoint"] == "runs/a/checkpoints/step_00000600");
  CHECK(row["run"] == "runs/a");
  CHECK(row["loss"] == 0.125);
  CHECK(row["standard_error"] == 0.01);
  CHECK(row["interval"][0] == doctest::Approx(0.1054));
  CHECK(row["interval"][1] == doctest::Approx(0.1446));
  CHECK(row["losses"]["denoising"] == 0.125);
  CHECK(row["strata"][1]["u"] == 0.5);
  CHECK(row["strata"][1]["loss"] == 0.0625);
  CHECK(row["strata"][1]["interval"].is_null());
  CHECK(row["strata"][2]["loss"].is_null());
  CHECK(json["rows"][1]["loss"].is_null());
}

}  // namespace
}  // namespace ditto
