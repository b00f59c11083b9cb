// What `ditto init` makes of a folder of shards by their names.
#include <doctest/doctest.h>

#include <filesystem>

#include "core/formats/archive/tar.h"
#include "core/formats/picture/picture.h"
#include "core/plan/first_recipe.h"
#include "tests/support/files.h"

namespace {

using NameList = std::vector<std::string>;

void write_shard_of(const std::string& path, int height, int width) {
  ditto::formats::TarWriter tar(path);
  const std::vector<std::uint8_t> pixels(static_cast<size_t>(height * width), 9);
  for (int i = 0; i < 4; ++i)
    tar.add(std::to_string(i) + ".png", ditto::formats::encode_png({width, height, 1, pixels}));
  tar.finish();
}

struct ShardNames {
  NameList shards, train, validation;
  int64_t samples, held_out;
};

}  // namespace

TEST_CASE("shards that are held out by their names are held out, and never learned from") {
  const std::vector<ShardNames> cases{
      {{"train-000000.tar", "train-000001.tar", "validation-000000.tar"}, {"train-*.tar"}, {"validation-*.tar"}, 8, 4},
      {{"imagenet-train-0.tar", "imagenet-val-0.tar"}, {"imagenet-train-*.tar"}, {"imagenet-val-*.tar"}, 4, 4},
      {{"0001.tar", "0002.tar", "val.tar"}, {"0001.tar", "0002.tar"}, {"val.tar"}, 8, 4},
      {{"0001.tar", "0002.tar"}, {"*.tar"}, {}, 8, 0},
      {{"train.tar", "test.tar"}, {"train.tar"}, {"test.tar"}, 4, 4},
      {{"train-0.tar", "val-0.tar", "test-0.tar"}, {"train-*.tar"}, {"val-*.tar"}, 4, 4},
      {{"train-0.tar", "extra-0.tar"}, {"train-*.tar"}, {}, 4, 0},
      {{"val-0.tar", "val-1.tar"}, {"val-*.tar"}, {}, 8, 0},
      {{"a-1.tar", "b-1.tar", "dev.tar"}, {"a-*.tar", "b-*.tar"}, {"dev.tar"}, 8, 4},
  };
  for (const auto& one : cases) {
    const ditto::test::TemporaryFolder folder;
    const auto in = folder.path() / "set";
    std::filesystem::create_directory(in);
    for (const auto& name : one.shards) write_shard_of((in / name).string(), 8, 8);
    const auto facts = ditto::shard_facts(in.string(), folder.path().string());
    CAPTURE(one.shards);
    const auto below = [](NameList names) {
      for (auto& name : names) name.insert(0, "set/");
      return names;
    };
    CHECK(facts.train == below(one.train));
    CHECK(facts.validation == below(one.validation));
    CHECK(facts.samples == one.samples);
    CHECK(facts.held_out == one.held_out);
    const auto all = static_cast<int64_t>(4 * one.shards.size());
    CHECK(facts.notes.size() == (facts.samples + facts.held_out < all ? 1 : 0));
  }
}

TEST_CASE("pictures in shards that a recipe would cut are said, with how much of them") {
  const ditto::test::TemporaryFolder folder;
  write_shard_of(folder / "a.tar", 8, 16);
  write_shard_of(folder / "b.tar", 12, 12);
  const auto facts = ditto::shard_facts(folder.path().string(), folder.path().string());
  REQUIRE(facts.notes.size() == 1);
  CHECK(facts.notes.front() ==
        "4 of 8 pictures are not square: of each the middle is kept, and 50 % is cut off (data.size)");
}
