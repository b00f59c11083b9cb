// What a cascade's file says, and what is refused of it.
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <ditto/error.h>

#include "core/cascade/cascade.h"
#include "core/cascade/cascade_folder.h"
#include "core/config/include.h"
#include "core/config/recipe.h"

namespace {

namespace fs = std::filesystem;
using doctest::Contains;

class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "ditto_cascade_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
    for (const char* stage : {"base", "sr32", "sr64"}) write(std::string(stage) + ".toml", "[run]\nsteps = 3\n");
  }
  ~Folder() { fs::remove_all(path_); }
  std::string write(const std::string& name, const std::string& text) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text;
    return (path_ / name).string();
  }
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::string cascade(const std::string& more = "",
                      const std::string& stages = R"("base.toml", "sr32.toml", "sr64.toml")") const {
    return write("faces.toml", "[cascade]\nstages = [" + stages + "]\n" + more);
  }

 private:
  fs::path path_;
};

void refused(const std::string& path, const std::string& what, const std::vector<std::string>& sets = {}) {
  CHECK_THROWS_WITH_AS(ditto::read_cascade(path, sets), Contains(what.c_str()), ditto::Error);
}

}  // namespace

TEST_CASE("a cascade is read: names, files and folders of its stages, and what is set for one") {
  const Folder folder;
  const auto path = folder.cascade();
  CHECK(ditto::is_cascade(path));
  CHECK_FALSE(ditto::is_cascade(folder.file("base.toml")));
  CHECK_FALSE(ditto::is_cascade(folder.file("")));
  CHECK_FALSE(ditto::is_cascade(folder.file("nothing")));
  const auto cascade = ditto::read_cascade(path, {"sr32.run.steps=7", "cascade.output=out"});
  CHECK(cascade.name == "faces");
  CHECK(cascade.output == "out");
  CHECK(cascade.passes == "low");
  CHECK(cascade.names() == "base, sr32, sr64");
  CHECK(cascade.stages[1].recipe == folder.file("sr32.toml"));
  CHECK(cascade.stages[1].folder == "out/sr32");
  CHECK(cascade.stages[1].to_train() == std::vector<std::string>{"run.steps=7", "run.output=\"out/sr32\""});
  CHECK(cascade.stages[1].sets == std::vector<std::string>{"run.steps=7"});
  CHECK(cascade.stages[0].sets.empty());
  CHECK(ditto::read_cascade(path).output == "runs/faces");
  CHECK(ditto::read_cascade(folder.cascade("name = \"people\"\npasses = \"small\"\n")).output == "runs/people");
  CHECK(ditto::read_cascade(path).passes == "small");
  CHECK(cascade.place_of("3", "--stage") == 2);
  CHECK(cascade.place_of("sr64", "--stage") == 2);
  for (const char* none : {"0", "4", "sr", ""})
    CHECK_THROWS_WITH_AS(cascade.place_of(none, "--stage"), Contains("it has 1 to 3: base, sr32, sr64"), ditto::Error);
}

TEST_CASE("of stages whose names begin alike a key is of the longer one") {
  const Folder folder;
  folder.write("sr.toml", "[run]\n");
  folder.write("sr.b.toml", "[run]\n");
  const auto cascade =
      ditto::read_cascade(folder.cascade("", R"("sr.toml", "sr.b.toml")"), {"sr.b.run.steps=1", "sr.run.steps=2"});
  CHECK(cascade.stages[0].sets.front() == "run.steps=2");
  CHECK(cascade.stages[1].sets.front() == "run.steps=1");
}

TEST_CASE("what is no cascade, or one that could not be trained, is refused") {
  const Folder folder;
  refused(folder.file("base.toml"), "has no [cascade]");
  refused(folder.cascade("", R"("base.toml")"), "a cascade has two stages at least, and this one 1");
  refused(folder.cascade("", R"("base.toml", "sr128.toml")"), "stage \"sr128\" is not at " + folder.file("sr128.toml"));
  refused(folder.cascade("", R"("base.toml", "../")"), "is no folder's name");
  folder.write("two/base.toml", "[run]\n");
  refused(folder.cascade("", R"("base.toml", "two/base.toml")"), "two stages would be called \"base\"");
  folder.write("2.toml", "[run]\n");
  refused(folder.cascade("", R"("base.toml", "2.toml")"), "which --stage takes for a place");
  folder.write("run.toml", "[run]\n");
  refused(folder.cascade("", R"("base.toml", "run.toml")"), "which means another thing in a folder");
  folder.write("inner.toml", "[cascade]\nstages = []\n");
  refused(folder.cascade("", R"("base.toml", "inner.toml")"), "stage \"inner\" is itself a cascade");
  refused(folder.cascade("passes = \"\"\n"), "passes is empty");
  refused(folder.cascade("name = \"../people\"\n"), "is no folder's name");
  refused(folder.cascade("pases = \"low\"\n"), "passes");
  refused(folder.cascade("[run]\nsteps = 3\n"), "has no \"run\" beside [cascade]");
  refused(folder.cascade("[record]\nreceipts = true\n"), "[record] of a cascade's file");
}

TEST_CASE("what is set says whose it is") {
  const Folder folder;
  const auto path = folder.cascade();
  refused(path, "does not say which stage of", {"run.steps=7"});
  refused(path, "write it as --set base.run.steps=7; stages: base, sr32, sr64", {"run.steps=7"});
  refused(path, "does not say which stage of", {"sr128.run.steps=7"});
  refused(path, "would take a stage's run out of its cascade's folder", {"base.run.output=x"});
  refused(path, "out", {"cascade.outptu=x"});
}

TEST_CASE("a cascade's folder goes on where the recipes have gone") {
  const Folder folder;
  const auto output = folder.file("out");
  auto cascade =
      ditto::read_cascade(folder.cascade("passes = \"small\"\n"), {"cascade.output=" + output, "base.run.steps=9"});
  std::vector<ditto::formats::Table> recipes;
  for (const auto& stage : cascade.stages)
    recipes.push_back(ditto::Recipe::read(stage.recipe, stage.to_train()).resolved());
  ditto::write_cascade_folder(cascade, recipes, std::nullopt);
  CHECK(ditto::is_cascade(output));
  const auto again = ditto::read_cascade(output);
  CHECK(again.name == "faces");
  CHECK(again.passes == "small");
  CHECK(again.output == output);
  CHECK(again.stages[0].folder == output + "/base");
  CHECK(ditto::Recipe::read(again.stages[0].recipe, again.stages[0].to_train()).run.steps == 9);

  // Of one stage that is set, the others' stay.
  const auto other = ditto::read_cascade(folder.cascade("passes = \"small\"\n"),
                                         {"cascade.output=" + output, "base.run.steps=1", "sr32.run.steps=2"});
  recipes.clear();
  for (const auto& stage : other.stages)
    recipes.push_back(ditto::Recipe::read(stage.recipe, stage.to_train()).resolved());
  ditto::write_cascade_folder(other, recipes, 1);
  CHECK(ditto::Recipe::read(output + "/base.toml").run.steps == 9);
  CHECK(ditto::Recipe::read(output + "/sr32.toml").run.steps == 2);

  // Another cascade is not written over it.
  const auto two = ditto::read_cascade(folder.cascade("", R"("base.toml", "sr64.toml")"), {"cascade.output=" + output});
  CHECK_THROWS_WITH_AS(ditto::write_cascade_folder(two, {recipes[0], recipes[2]}, std::nullopt),
                       Contains("is the folder of another cascade, of base, sr32, sr64 by \"small\""), ditto::Error);
}

TEST_CASE("a stage without a checkpoint is named with the command that trains it, and one run is not a cascade") {
  const Folder folder;
  const auto path = folder.cascade();
  const auto cascade = ditto::read_cascade(path, {"cascade.output=" + folder.file("out")});
  const auto remedy =
      "stage 2 of faces, \"sr32\", has no checkpoint; train it: `ditto train " + path + " --stage sr32`";
  CHECK_THROWS_WITH_AS(ditto::checkpoint_of_stage(cascade, 1), Contains(remedy.c_str()), ditto::Error);
  CHECK_THROWS_WITH_AS(
      ditto::refuse_cascade(path, "ditto replay"),
      Contains("`ditto replay` is of one run or recipe; name a stage's: runs/faces/base, runs/faces/sr32"),
      ditto::Error);
  CHECK_NOTHROW(ditto::refuse_cascade(folder.file("base.toml"), "ditto replay"));
  CHECK_THROWS_WITH_AS(ditto::Recipe::read(path),
                       Contains("one recipe is wanted; name one of its stages: base.toml, sr32.toml"), ditto::Error);
  CHECK(ditto::remedy_of_cascade(folder.file("")).empty());
}
