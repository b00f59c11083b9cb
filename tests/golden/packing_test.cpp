// Packs are those of NeMo's first_fit_decreasing: packing.json, made by make_packing.py.
//
// Claim (numbers): Packs are NeMo's: its first-fit-decreasing gives the same lists on 1,000 random sets of lengths.
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/data/batch_plan.h"

TEST_CASE("1,000 random sets of lengths are packed as NeMo packs them") {
  std::ifstream file(std::string(DITTO_SOURCE_DIR) + "/tests/golden/packing.json");
  const auto sets = nlohmann::json::parse(file).at("sets");
  REQUIRE(sets.size() == 1000);
  for (const auto& set : sets) {
    const auto lengths = set.at("lengths").get<std::vector<int64_t>>();
    std::vector<std::vector<int64_t>> packs;
    for (const auto& pack : ditto::first_fit_decreasing(lengths, set.at("room"), 1000)) {
      packs.emplace_back();
      for (const size_t i : pack) packs.back().push_back(lengths[i]);
    }
    REQUIRE(packs == set.at("packs").get<std::vector<std::vector<int64_t>>>());
  }
}
