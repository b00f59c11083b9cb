// [[validate.picture]]: what a recipe says of the pictures of its sheets.
#include <doctest/doctest.h>

#include "core/config/recipe.h"
#include "support/files.h"

using namespace ditto;
using test::contains;

namespace {

const std::string kSheets = "[validate]\ngrid_every = 2\n";

Recipe recipe_of(const std::string& text, const std::vector<std::string>& sets = {}) {
  return Recipe::parse(text, "sheets.toml", sets);
}

std::string refusal(const std::string& text, const std::vector<std::string>& sets = {}) {
  return test::error_of(ErrorKind::config, [&] { recipe_of(text, sets); });
}

}  // namespace

TEST_CASE("pictures of a sheet are read in order, with their place as seed and what they do not say as without them") {
  const auto pictures = recipe_of(kSheets +
                                  "[[validate.picture]]\nclass = 3\nguidance = 0.0\nsteps = 7\n"
                                  "[[validate.picture]]\nclass = \"cat\"\nprompt = \"a cat\"\nsize = \"8x12\"\n"
                                  "[[validate.picture]]\nseed = 40\ncondition = \"kite.safetensors\"\n")
                            .validate.pictures;
  REQUIRE(pictures.size() == 3);
  CHECK(pictures[0].of_class == "3");
  CHECK(pictures[0].has_guidance);
  CHECK(pictures[0].guidance == 0);
  CHECK(pictures[0].steps == 7);
  CHECK(pictures[0].seed == 0);
  CHECK(pictures[1].of_class == "cat");
  CHECK(pictures[1].prompt == "a cat");
  CHECK(pictures[1].size == "8x12");
  CHECK(pictures[1].seed == 1);
  CHECK_FALSE(pictures[1].has_guidance);
  CHECK(pictures[1].steps == 0);
  CHECK(pictures[2].seed == 40);
  CHECK(pictures[2].condition == "kite.safetensors");
  CHECK(pictures[2].section == "validate.picture.2");
}

TEST_CASE("a recipe written out has what its pictures say and no more, and is the same again") {
  const auto text = kSheets + "[[validate.picture]]\nclass = 3\n[[validate.picture]]\nguidance = 2.5\n";
  const auto recipe = recipe_of(text, {"validate.picture.1.seed=9"});
  const auto written = formats::render_toml(recipe.resolved());
  CHECK_FALSE(contains(written, "prompt"));
  const auto again = recipe_of(written);
  REQUIRE(again.validate.pictures.size() == 2);
  CHECK(again.validate.pictures[0].of_class == "3");
  CHECK(again.validate.pictures[1].seed == 9);
  CHECK(again.validate.pictures[1].guidance == 2.5);
  CHECK(formats::render_toml(again.resolved()) == written);
  CHECK_FALSE(contains(formats::render_toml(recipe_of(kSheets).resolved()), "picture"));
  CHECK(recipe_of(text, {"validate.picture=[]"}).validate.pictures.empty());
}

TEST_CASE("what is no picture of a sheet is refused by its place") {
  CHECK(contains(refusal(kSheets + "[[validate.picture]]\nclas = 3\n"), "did you mean \"class\"?"));
  CHECK(contains(refusal(kSheets + "picture = 3\n"), "each [[validate.picture]]"));
  CHECK(contains(refusal(kSheets + "[[validate.picture]]\nseed = -1\n"), "sheets.toml:4"));
  CHECK(contains(refusal(kSheets + "[[validate.picture]]\nsteps = 1.5\n"), "validate.picture.0.steps"));
}

TEST_CASE(
    "pictures without a sheet, and a number of pictures beside a list, are refused, or go along where overridden") {
  const std::string one = "[[validate.picture]]\nclass = 3\n";
  CHECK(contains(refusal("[validate]\nevery = 1\n" + one), "validate.picture is of a sheet"));
  CHECK(contains(refusal(kSheets + "grid = 4\n" + one), "validate.grid is of a sheet that names no pictures"));
  CHECK(contains(refusal(kSheets, {"validate.grid_every=0", "validate.picture=[{class = 3}]"}), "validate.picture"));
  const auto without = recipe_of(kSheets + one, {"validate.grid_every=0"});
  CHECK(without.validate.pictures.empty());
  REQUIRE(without.left_out.size() == 1);
  CHECK(contains(without.left_out[0], "validate.picture is of a sheet, and validate.grid_every is 0"));
}
