// A folder's list and its files agree, whatever ended the command before.
#include "core/sample/sample_folder.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "core/formats/picture/picture.h"
#include "core/formats/tensor/npz.h"
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

std::vector<std::byte> picture(const std::string& request = "r4") {
  formats::Picture one;
  one.width = one.height = one.channels = 1;
  one.pixels = {7};
  return formats::encode_png(one, {{"ditto", "{\"request\":\"" + request + "\"}"}});
}

void make(SampleFolder& folder, size_t i) { folder.add(i, picture()); }

void write_picture(const std::string& path, const std::string& request) {
  formats::write_file(path, picture(request), ErrorKind::data);
}

std::string line_of(const SampleFolder& folder, size_t i) {
  auto one = folder.line(i);
  one["crc32"] = formats::crc32(picture());
  return one.dump() + "\n";
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
    write_picture(folder.path("1.png"), "r4");  // killed before its line
    write_text(folder.path("1.png.tmp-77"), "half");
  }
  std::filesystem::remove(at / "s/0.png");
  auto again = folder_of(at);
  CHECK(again.prepare(false, silent) == Flags{0, 0, 1});
  CHECK(!std::filesystem::exists(at / "s/1.png"));
  CHECK(!std::filesystem::exists(at / "s/1.png.tmp-77"));
  const auto list = read_text(at / "s/samples.jsonl");
  CHECK(list == line_of(again, 2));
  make(again, 1);
  make(again, 0);
  again.finish();
  CHECK(read_text(at / "s/samples.jsonl") == line_of(again, 0) + line_of(again, 1) + list);
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

TEST_CASE("a file that is not what its line says is refused, and made again with overwrite") {
  const TemporaryFolder at;
  {
    auto folder = folder_of(at);
    folder.prepare(false, silent);
    make(folder, 0);
    make(folder, 1);
  }
  write_picture(at / "s/1.png", "mine");
  CHECK(contains(error_of(ErrorKind::data, [&] { folder_of(at).prepare(false, silent); }), "1.png"));
  CHECK(contains(read_text(at / "s/1.png"), "mine"));
  CHECK(folder_of(at).prepare(true, silent) == Flags{1, 0, 0});
  CHECK(!std::filesystem::exists(at / "s/1.png"));
}

TEST_CASE("somebody's picture under a name that is still to be made is never replaced") {
  const TemporaryFolder at;
  {
    auto folder = folder_of(at);
    folder.prepare(false, silent);
    make(folder, 0);
  }
  write_picture(at / "s/2.png", "mine");
  for (const bool overwrite : {false, true})
    CHECK(contains(error_of(ErrorKind::config, [&] { folder_of(at).prepare(overwrite, silent); }), "2.png"));
  CHECK(contains(read_text(at / "s/2.png"), "mine"));
  const TemporaryFolder other;
  std::filesystem::create_directory(other / "s");
  write_picture(other / "s/grid.png", "mine");
  for (const bool overwrite : {false, true})
    CHECK(contains(error_of(ErrorKind::config, [&] { folder_of(other).prepare(overwrite, silent); }), "grid.png"));
}
