// Stages that agree, and each way in which they may not.
#include <doctest/doctest.h>

#include <ditto/error.h>

#include "core/cascade/agreement.h"

namespace {

using ditto::StageTensors;

ditto::Cascade three() {
  ditto::Cascade cascade;
  cascade.file = cascade.name = "faces";
  cascade.passes = "low";
  for (const char* name : {"base", "sr32", "sr64"})
    cascade.stages.push_back({name, std::string(name) + ".toml", name, {}});
  return cascade;
}

ditto::formats::Table encoder(const std::string& plugin) {
  ditto::formats::Table table;
  table.set("plugin", {plugin, {}});
  table.set("tokens", {int64_t{24}, {}});
  return table;
}

std::vector<StageTensors> agreed() {
  StageTensors base;
  base.picture = {3, 16, 16};
  base.asked = {{"text", torch::kFloat, {24, 64}, ""},
                {"text_mask", torch::kBool, {24}, ""},
                {"label", torch::kLong, {}, "", 2, {"cat", "dog"}}};
  base.text_encoders = {{"text", encoder("t5")}};
  auto sr32 = base, sr64 = base;
  sr32.picture = {3, 32, 32}, sr64.picture = {3, 64, 64};
  sr32.passed = {3, 16, 16}, sr64.passed = {3, 32, 32};
  sr32.makes_passed = sr64.makes_passed = true;
  return {base, sr32, sr64};
}

void refused(const std::vector<StageTensors>& stages, const std::string& what) {
  CHECK_THROWS_WITH_AS(ditto::require_agreement(three(), stages), doctest::Contains(what.c_str()), ditto::Error);
}

}  // namespace

TEST_CASE("stages that agree are taken, and so are those that are asked for less, or of sizes that the data says") {
  auto stages = agreed();
  CHECK_NOTHROW(ditto::require_agreement(three(), stages));
  stages[2].asked = {stages[0].asked[0]};
  stages[1].asked.clear();
  stages[2].text_encoders.clear();  // it reads what another has encoded
  stages[1].picture = {3, ditto::kOwnSide, ditto::kOwnSide};
  CHECK_NOTHROW(ditto::require_agreement(three(), stages));
}

TEST_CASE("what a stage passes fits the next in size") {
  auto stages = agreed();
  stages[2].passed = {3, 16, 16};
  refused(stages,
          "sr64.toml: stage 3 of faces, \"sr64\", takes a \"low\" of 3 x 16 x 16, and the stage before it, \"sr32\", "
          "makes 3 x 32 x 32");
  stages = agreed();
  stages[1].passed = {1, 16, 16};
  refused(stages, "takes a \"low\" of 1 x 16 x 16, and the stage before it, \"base\", makes 3 x 16 x 16");
}

TEST_CASE("what is passed is taken by all stages but the first") {
  auto stages = agreed();
  stages[0].passed = {3, 8, 8};
  refused(stages, "stage 1 of faces, \"base\", takes \"low\", and no stage is before it");
  stages = agreed();
  stages[1].passed.clear();
  refused(stages,
          "stage 2 of faces, \"sr32\", makes \"low\" of its data, and neither its model nor an encoder takes it");
  stages[1].makes_passed = false;
  refused(stages, "stage 2 of faces, \"sr32\", does not take \"low\", which the cascade passes");
}

TEST_CASE("all stages are asked for by the same texts and classes") {
  auto stages = agreed();
  stages[1].asked[0].name = "caption_embedding";
  refused(stages,
          "stage 2 of faces, \"sr32\", is asked for by \"caption_embedding\" Float [24, 64], which the first, "
          "\"base\", does not take");
  stages = agreed();
  stages[2].asked[0].shape = {32, 64};
  refused(stages, "is asked for by \"text\" Float [32, 64], and the first, \"base\", by \"text\" Float [24, 64]");
  stages[2].asked[0].shape = {24, 128};
  refused(stages, "is asked for by \"text\" Float [24, 128]");
  stages = agreed();
  stages[2].asked[2].names = {"cat", "bird"};
  refused(stages, "calls values of \"label\" otherwise than the first");
  stages[2].asked[2] = {"label", torch::kLong, {}, "", 3};
  refused(stages, "is asked for by \"label\" Long [] of 0 … 2, and the first, \"base\", by \"label\" Long [] of 0 … 1");
}

TEST_CASE("a text is encoded alike in all stages") {
  auto stages = agreed();
  stages[1].text_encoders.find("text")->second = encoder("bert");
  refused(stages,
          "stage 2 of faces, \"sr32\", encodes \"text\" with plugin = \"bert\", and the first, \"base\", with \"t5\"");
  stages = agreed();
  stages[0].text_encoders.find("text")->second.set("weights", {std::string("t5-large"), {}});
  refused(stages, "encodes \"text\" otherwise than the first, \"base\"");
  stages = agreed();
  for (size_t i = 0; i < stages.size(); ++i) stages[i].text_encoders.emplace("tokens", encoder(i == 2 ? "bert" : "t5"));
  refused(stages, "stage 3 of faces, \"sr64\", encodes \"tokens\" with plugin = \"bert\"");
  stages = agreed();
  stages[1].text_encoders.emplace("text", encoder("fit_text"));  // of the same name, behind the other
  refused(stages, "stage 2 of faces, \"sr32\", encodes \"text\" otherwise than the first");
}
