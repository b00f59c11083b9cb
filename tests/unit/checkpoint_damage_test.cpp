// Checkpoints that lost or changed bytes: found, named, and stepped over.
#include <doctest/doctest.h>

#include <random>

#include "core/checkpoint/checkpoint.h"
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
