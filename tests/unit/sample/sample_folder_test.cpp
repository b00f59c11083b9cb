// A folder's list and its files agree, whatever ended the command before.
#include "core/sample/sample_folder.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "support/files.h"

using namespace ditto;
using test::contains;
using test::error_of;
using test::read_text;
using test::TemporaryFolder;
using test::write_text;

namespace {

using Flags = std::vector<uint8_t>;

SampleFolder folder_of(const TemporaryFolder& at, int steps = 4,
                       std::vector<std::string> names = {"0.png", "1.png", "2.png"}) {
  return {
      (at / "s"), std::move(names), [steps](size_t i) {
        return nlohmann::json{{"request", "r" + std::to_string(steps)}, {"seed", i}, {"sampler", {{"steps", steps}}}};
      }};
}

void make(SampleFolder& folder, size_t i) {
  write_text(folder.path(folder.name(i)), "picture");
  folder.note(i);
}

const auto silent = [](const std::string& line) { FAIL(line); };

}  // namespace

TEST_CASE("what has a file and a line is there; a line or a file alone is made again") {
  const TemporaryFolder at;
  {
    auto folder = folder_of(at);
    CHECK(folder.prepare(false, silent) == Flags{0, 0, 0});
    make(folder, 2);
    make(folder, 0);
    write_text(folder.path("1.png"), "killed before its line");
    write_text(folder.path("1.png.tmp-77"), "half");
  }
  std::filesystem::remove(at / "s/0.png");
  auto again = folder_of(at);
  CHECK(again.prepare(false, silent) == Flags{0, 0, 1});
  CHECK(!std::filesystem::exists(at / "s/1.png"));
  CHECK(!std::filesystem::exists(at / "s/1.png.tmp-77"));
  const auto list = read_text(at / "s/samples.jsonl");
  CHECK(list == again.line(2).dump() + "\n");
  make(again, 1);
  make(again, 0);
  again.finish();
  CHECK(read_text(at / "s/samples.jsonl") == again.line(0).dump() + "\n" + again.line(1).dump() + "\n" + list);
}

TEST_CASE("another request is refused with what differs, and replaces the first where that is asked for") {
  const TemporaryFolder at;
  {
    auto folder = folder_of(at);
    folder.prepare(false, silent);
    make(folder, 0);
    write_text(at / "s/mine.txt", "mine");
  }
  const auto said = error_of(ErrorKind::config, [&] { folder_of(at, 5).prepare(false, silent); });
  CHECK(contains(said, "samples from before"));
  CHECK(contains(said, "sampler.steps is 4 there and 5 here"));
  CHECK(std::filesystem::exists(at / "s/0.png"));
  CHECK(folder_of(at, 5, {"7.png"}).prepare(true, silent) == Flags{0});
  CHECK(!std::filesystem::exists(at / "s/0.png"));
  CHECK(read_text(at / "s/mine.txt") == "mine");
}

TEST_CASE("pictures whose list is gone are said, and never replaced") {
  const TemporaryFolder at;
  {
    auto folder = folder_of(at);
    folder.prepare(false, silent);
    make(folder, 0);
  }
  std::filesystem::remove(at / "s/samples.jsonl");
  for (const bool overwrite : {false, true})
    CHECK(contains(error_of(ErrorKind::config, [&] { folder_of(at).prepare(overwrite, silent); }), "0.png"));
  std::string said;
  folder_of(at, 4, {"7.png"}).prepare(true, [&](const std::string& line) { said = line; });
  CHECK(contains(said, "1 picture already"));
  CHECK(contains(said, "0.png"));
  CHECK(std::filesystem::exists(at / "s/0.png"));
}
