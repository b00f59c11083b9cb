#include "core/formats/names.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "tests/support/files.h"

namespace {

namespace fs = std::filesystem;
using ditto::formats::identity_of;
using ditto::formats::names_apart;
using ditto::formats::number_of_name;
using ditto::formats::part_of_set;
using ditto::formats::SetPart;

}  // namespace

TEST_CASE("a name is a number where a reader takes it for one") {
  for (const auto& [name, number] : std::vector<std::pair<std::string, double>>{
           {"1", 1}, {"02", 2}, {"-3", -3}, {"1.0", 1}, {"1e3", 1000}, {"0", 0}})
    CHECK(number_of_name(name) == number);
  for (const auto* name : {"", "cat", "1st", "x2", "inf", "nan", "1-2", "1,2", " 1", "0x10", "-", "1.2.3"}) {
    CAPTURE(name);
    CHECK_FALSE(number_of_name(name).has_value());
  }
}

TEST_CASE("a folder or file is a part of a set by a word of its name, and no part by letters of one") {
  for (const auto* name : {"train", "Train", "TRAINING", "train2017", "train-000000.tar", "imagenet-train-000000.tar",
                           "train_images", "TrainImages", "trainval", "1_train"})
    CHECK_MESSAGE((part_of_set(name) == SetPart::learned), name);
  for (const auto* name : {"val", "VAL", "validation-000000.tar", "test", "val2017", "dev", "held_out", "held-out",
                           "holdout", "TestImages", "imagenet-val-000000.tar", "test_batch", "eval"})
    CHECK_MESSAGE((part_of_set(name) == SetPart::held_out), name);
  for (const auto* name : {"cat", "trainer", "valley", "train station", "test tube", "contest", "developer",
                           "000000.tar", "", "constrained"})
    CHECK_MESSAGE((part_of_set(name) == SetPart::none), name);
}

TEST_CASE("paths are of parts by the folders that they are in, the innermost first") {
  const auto said = [](const std::vector<std::string>& paths) {
    ditto::formats::PartsSeen parts;
    for (const auto& path : paths) parts.add(path);
    return parts.sentence();
  };
  CHECK(said({"train/cat/1", "train/dog/1", "val/cat/1"}) ==
        "\"val/cat/1\" is held out by its folder, and learned from as \"train/cat/1\" is");
  CHECK_FALSE(said({"data/train/1.png", "data/val/1.png"}).empty());
  CHECK_FALSE(said({"train/", "test/"}).empty());
  for (const auto& paths : std::vector<std::vector<std::string>>{{},
                                                                 {"train/1", "train/2"},
                                                                 {"val/1", "cat/2"},
                                                                 {"train", "val"},
                                                                 {"val/train/1", "val/train/2"},
                                                                 {"a/1", "b/1"}})
    CHECK(said(paths).empty());
}

TEST_CASE("names that stand at other numbers are told from names that are only others") {
  CHECK_FALSE(names_apart({"cat", "dog"}, {"cat", "dog"}).has_value());
  CHECK_FALSE(names_apart({"Cat", "hot_dog"}, {"cat", "hot dog"}).has_value());
  CHECK_FALSE(names_apart({"cat", "dog"}, {}).has_value());
  CHECK_FALSE(names_apart({"crane", "crane"}, {"crane", "crane"}).has_value());
  const auto renamed = names_apart({"cat", "dog"}, {"cat", "wolf"});
  REQUIRE(renamed.has_value());
  CHECK((renamed->number == 1 && renamed->name == "dog" && renamed->other == "wolf" && !renamed->is_elsewhere));
  // What leads to something else comes before what is only called otherwise.
  const auto moved = names_apart({"puma", "cat", "dog"}, {"lion", "dog", "cat"});
  REQUIRE(moved.has_value());
  CHECK((moved->number == 1 && moved->is_elsewhere));
  CHECK(names_apart({"1", "2", "3"}, {"0", "1", "2"})->is_elsewhere);
}

TEST_CASE("a file is the same under all of its names, and a copy is another") {
  const ditto::test::TemporaryFolder folder;
  ditto::test::write_text(folder / "a", "x");
  fs::create_directory(folder / "down");
  fs::create_symlink("a", folder / "soft");
  fs::create_symlink(".", folder / "round");
  fs::create_hard_link(folder / "a", folder / "hard");
  fs::copy_file(folder / "a", folder / "copy");
  const auto own = identity_of(folder / "a");
  for (const auto* name : {"/./a", "/down/../a", "/soft", "/round/a", "/round/round/hard", "/hard"})
    CHECK_MESSAGE(identity_of(folder.path().string() + name) == own, name);
  CHECK(identity_of(folder / "copy") != own);
  CHECK(identity_of("https://host/x/./a.tar") == identity_of("https://host/x/y/../a.tar"));
  CHECK(identity_of("https://host/a.tar") != identity_of("https://other/a.tar"));
}
