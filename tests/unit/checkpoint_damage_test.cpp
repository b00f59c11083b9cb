// Checkpoints that lost or changed bytes: found, named, and stepped over.
#include <doctest/doctest.h>

#include <random>

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/disk.h"
#include "core/checkpoint/index.h"
#include "core/checkpoint/manifest.h"
#include "support/checkpoint_world.h"
#include "support/files.h"

namespace fs = std::filesystem;
namespace checkpoint = ditto::checkpoint;
using ditto::Axis;
using ditto::ErrorKind;
using namespace ditto::test;

namespace {

// Two good steps; the newer one is harmed and mended again and again.
class Damage {
 public:
  Damage() {
    save_world(folder_ / "c", kTwo, 1, 500);
    save_world(folder_ / "c", kTwo, 2, 600);
    for (const auto& item : fs::directory_iterator(path())) files_[item.path().filename()] = read_text(item.path());
  }
  std::string path() const { return folder_ / "c/step_00000600"; }
  const std::map<std::string, std::string>& files() const { return files_; }
  void mend(const std::string& file) const { write_text(path() + "/" + file, files_.at(file)); }

  // The harm is seen, named, refused by load, and the step before is found.
  void check(const std::string& file) const {
    const auto problems = checkpoint::verify(path());
    REQUIRE_MESSAGE(!problems.empty(), file);
    CHECK_MESSAGE(contains(problems[0], file), problems[0]);
    const auto found = checkpoint::find(folder_ / "c");
    CHECK(found.path == folder_ / "c/step_00000500");
    REQUIRE(found.skipped.size() == 1);
    CHECK(contains(found.skipped[0], "skipped step_00000600: "));
    CHECK(contains(found.skipped[0], file));
    Rank rank({}, 0, 3), before({}, 0, 3);
    const std::string error = error_of(ErrorKind::checkpoint, [&] {
      auto state = rank.state();
      checkpoint::load(path(), state);
    });
    CHECK_MESSAGE(contains(error, file), error);
    CHECK(rank.same_as(before));
  }

 private:
  static inline const Degrees kTwo{{Axis::tensor, 2}};
  TemporaryFolder folder_;
  std::map<std::string, std::string> files_;
};

}  // namespace

TEST_CASE("a flipped bit in any file, anywhere, is found and the file is named") {
  const Damage damage;
  std::mt19937 random(7);
  for (const auto& [file, text] : damage.files()) {
    for (int i = 0; i < 25; ++i) {
      std::string changed = text;
      changed[random() % text.size()] ^= static_cast<char>(1 << random() % 8);
      write_text(damage.path() + "/" + file, changed);
      damage.check(file);
    }
    damage.mend(file);
  }
  CHECK(checkpoint::verify(damage.path()).empty());
}

TEST_CASE("every single byte of the manifest counts") {
  const Damage damage;
  const std::string text = damage.files().at("manifest.json");
  for (size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] ^= 1;
    CHECK(!error_of(ErrorKind::checkpoint, [&] { checkpoint::parse_manifest(changed, "m"); }).empty());
  }
  CHECK(checkpoint::parse_manifest(text, "m").files.size() == damage.files().size() - 1);
}

TEST_CASE("a manifest of another format, or whose checksums do not fit the sizes, is refused by name") {
  const auto error = [](const std::string& body) {
    const std::string text =
        body + ",\n\"xxh3_128_of_the_text_above\": \"" + checkpoint::checksum(as_bytes(body)) + "\"\n}\n";
    return error_of(ErrorKind::checkpoint, [&] { checkpoint::parse_manifest(text, "manifest.json"); });
  };
  const auto one = [](const std::string& chunk_bytes, const std::string& bytes, const std::string& sums) {
    return R"({"format": 2, "chunk_bytes": )" + chunk_bytes + R"(, "files": [{"name": "f", "bytes": )" + bytes +
           R"(, "xxh3_128": )" + sums + "}]";
  };
  CHECK(error(one("8", "0", "[]")).empty());
  CHECK(error(one("8", "16", R"(["a", "b"])")).empty());
  CHECK(contains(error(one("8", "17", R"(["a", "b"])")), "manifest.json: has 2 checksums for the 3 chunks of f"));
  const std::string before = R"({"format": 1, "files": [{"name": "f", "bytes": 8, "xxh3_128": "a"}])";
  CHECK(contains(error(before), "manifest.json: has format 1, this program reads format 2"));
  for (const auto& bad :
       {one("0", "0", "[]"), one("8", "8", R"("a")"), one("8", "8", "[1]"), one("8", "18446744073709551615", "[]"),
        one("99999999999", "1", R"(["a"])"), std::string(R"({"format": 2, "files": [])")})
    CHECK_MESSAGE(contains(error(bad), "manifest.json"), bad);
}

TEST_CASE("a state of any other shape is refused by the field that is wrong") {
  const auto error = [](const std::string& field, const std::string& value) {
    std::map<std::string, std::string> fields{{"format", "1"}, {"step", "3"},      {"samples", "48"}, {"seed", "7"},
                                              {"ranks", "2"},  {"counters", "{}"}, {"extra", "{}"}};
    fields[field] = value;
    std::string text;
    for (const auto& [name, part] : fields)
      if (!part.empty()) text += (text.empty() ? "{\"" : ", \"") + name + "\": " + part;
    return error_of(ErrorKind::checkpoint, [&] { checkpoint::parse_state(text + "}", "state.json"); });
  };
  CHECK(error("seed", "18446744073709551615").empty());
  CHECK(error("counters", R"({"steps": -1})").empty());
  for (const char* field : {"format", "step", "samples", "seed", "ranks", "counters", "extra"})
    for (const char* value : {"", "null", "true", "\"3\"", "1.5", "1e30", "[3]"}) {
      const std::string said = error(field, value), where = "state.json: its \"" + std::string(field) + "\" ";
      CHECK_MESSAGE(said.starts_with(where + (*value ? "is " : "is missing")), value << " gives " << said);
    }
  for (const char* field : {"step", "samples", "seed", "ranks"}) {
    CHECK(contains(error(field, "-1"), "whole number"));
    CHECK(contains(error(field, "18446744073709551616"), "whole number"));
  }
  CHECK(contains(error("step", "1000000000000000000"), "whole number"));
  CHECK(contains(error("ranks", "0"), "from 1 to"));
  CHECK(contains(error("format", "2"), "has format 2, this program reads format 1"));
  CHECK(contains(error("counters", R"({"steps": "many"})"), "its \"steps\" is \"many\""));
  CHECK(contains(error("extra", R"({"updates": 3})"), "its \"updates\" is 3; a string is expected"));
  for (const char* text : {"", "[]", "3", "null", "{"})
    CHECK(
        contains(error_of(ErrorKind::checkpoint, [&] { checkpoint::parse_state(text, "state.json"); }), "state.json"));
}

TEST_CASE("checksums of chunks do not depend on the parts that the bytes came in") {
  constexpr size_t kChunk = checkpoint::kChunkBytes;
  std::string text(3 * kChunk + 5, 'x');
  for (size_t i = 0; i < text.size(); i += 1000) text[i] = static_cast<char>(i / 1000);
  std::vector<std::string> expected;
  for (size_t at = 0; at < text.size(); at += kChunk)
    expected.push_back(checkpoint::checksum(as_bytes(text).subspan(at, std::min(kChunk, text.size() - at))));
  for (const size_t part : {size_t{7777}, kChunk - 1, kChunk, kChunk + 1, 2 * kChunk, text.size()}) {
    checkpoint::ChunkHasher hasher;
    for (size_t at = 0; at < text.size(); at += part)
      hasher.update(as_bytes(text).subspan(at, std::min(part, text.size() - at)));
    CHECK(hasher.finish() == expected);
  }
  CHECK(checkpoint::ChunkHasher().finish().empty());
}

TEST_CASE("a file that is cut off or has more bytes is found and named") {
  const Damage damage;
  for (const auto& [file, text] : damage.files()) {
    for (const size_t size : {size_t{0}, text.size() / 2, text.size() - 1}) {
      write_text(damage.path() + "/" + file, text.substr(0, size));
      damage.check(file);
    }
    write_text(damage.path() + "/" + file, text + "\n");
    damage.check(file);
    damage.mend(file);
  }
}

TEST_CASE("a file that is missing is named") {
  const Damage damage;
  for (const auto& [file, text] : damage.files()) {
    fs::remove(damage.path() + "/" + file);
    damage.check(file);
    damage.mend(file);
  }
}

TEST_CASE("a folder where a file should be is an error, not a crash") {
  const Damage damage;
  fs::remove(damage.path() + "/state.json");
  fs::create_directory(damage.path() + "/state.json");
  damage.check("state.json");
}

TEST_CASE("an index that does not hold is refused by name") {
  const auto error = [](const std::string& text) {
    return error_of(ErrorKind::checkpoint, [&] { checkpoint::parse_index(text, "index.json"); });
  };
  const auto one = [](const std::string& shape, const std::string& start, const std::string& size) {
    return R"({"format":1,"tensors":{"model":{"w":{"dtype":"F32","shape":)" + shape +
           R"(,"pieces":[{"file":"f","tensor":"w","start":)" + start + R"(,"size":)" + size + "}]}}}}";
  };
  CHECK(error(one("[4,2]", "[0,0]", "[4,2]")).empty());
  CHECK(error(one("[]", "[]", "[]")).empty());
  for (const auto& bad :
       {one("[4,2]", "[1,0]", "[4,2]"), one("[4,2]", "[-1,0]", "[4,2]"), one("[4,2]", "[0,0]", "[4,0]"),
        one("[4,2]", "[0]", "[4]"), one("[4,2]", "[9223372036854775807,0]", "[1,1]"), one("[-4,2]", "[0,0]", "[1,1]"),
        one("[4611686018427387904,4]", "[0,0]", "[1,1]"), one("[4,2.5]", "[0,0]", "[1,1]"), std::string("{}"),
        std::string("[]"), std::string("nonsense"), std::string(R"({"format":2,"tensors":{}})"),
        std::string(R"({"format":1,"tensors":{"model":3}})")})
    CHECK_MESSAGE(contains(error(bad), "index.json"), bad);
}
