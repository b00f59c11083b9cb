// What is removed from a run's checkpoints, what never is, and that failing to remove ends nothing.
#include <doctest/doctest.h>

#include <set>

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/disk.h"
#include "support/checkpoint_world.h"
#include "support/files.h"

namespace fs = std::filesystem;
namespace checkpoint = ditto::checkpoint;
using ditto::ErrorKind;
using namespace ditto::test;

namespace {

// Saves these steps, keeping one; what was warned of.
std::vector<std::string> save(const std::string& folder, const std::vector<int64_t>& steps) {
  std::vector<std::string> warnings;
  Rank rank({}, 0, 1);
  checkpoint::Saver saver(folder, {1, 0}, rank.mesh, {}, [&](const std::string& line) { warnings.push_back(line); });
  for (const int64_t step : steps) {
    saver.save(rank.state(step));
    saver.wait();
  }
  return warnings;
}

}  // namespace

TEST_CASE("what looks like a leftover of a save and is none is never removed") {
  const TemporaryFolder folder;
  const std::vector<std::string> foreign{"notes.tmp-1",        "step_00000100.tmp-mine", "step_100.tmp-7",
                                         "step_00000100.tmp-", "a.step_00000100.tmp-7",  "step_00000100.tmp-7.bak",
                                         "latest.tmp-x"};
  for (const auto& name : foreign) {
    fs::create_directories(folder / ("c/" + name));
    write_text(folder / ("c/" + name + "/thesis.txt"), "years of work");
  }
  // Of our names, but with something in them that no save writes.
  fs::create_directories(folder / "c/step_00000200.tmp-7");
  write_text(folder / "c/step_00000200.tmp-7/thesis.txt", "years of work");
  fs::create_directories(folder / "c/step_00000300.tmp-7/model-00000.safetensors");
  fs::create_directory_symlink(folder / "c/notes.tmp-1", folder / "c/step_00000400.tmp-7");

  const auto warnings = save(folder / "c", {100, 200});
  for (const auto& name : foreign) CHECK_MESSAGE(fs::exists(folder / ("c/" + name + "/thesis.txt")), name);
  CHECK(fs::exists(folder / "c/step_00000200.tmp-7/thesis.txt"));
  CHECK(fs::exists(folder / "c/step_00000300.tmp-7/model-00000.safetensors"));
  CHECK(fs::is_symlink(folder / "c/step_00000400.tmp-7"));
  REQUIRE(warnings.size() == 3);
  CHECK_MESSAGE(contains(warnings[0], "step_00000200.tmp-7: is left: no save has made 'thesis.txt' in it"),
                warnings[0]);
}

TEST_CASE("what saves and removals leave when they are killed is removed") {
  const TemporaryFolder folder;
  save(folder / "c", {100});
  for (const char* name : {"step_00000200.tmp-77", "step_00000050.tmp-77-old", "abandoned-step_00000300.tmp-77"}) {
    fs::copy(folder / "c/step_00000100", folder / ("c/" + std::string(name)));
    write_text(folder / ("c/" + std::string(name) + "/state.json.tmp-77"), "{");
  }
  fs::create_symlink("nowhere", folder / "c/latest.tmp-77");
  CHECK(checkpoint::list(folder / "c").unfinished.size() == 4);
  CHECK(save(folder / "c", {400}).empty());
  CHECK(checkpoint::list(folder / "c").unfinished.empty());
  CHECK(std::distance(fs::directory_iterator(folder / "c"), {}) == 2);  // the step, and latest
}

TEST_CASE("an old step with somebody's notes in it stays, is told of once, and the run goes on") {
  const TemporaryFolder folder;
  save(folder / "c", {100});
  write_text(folder / "c/step_00000100/notes.txt", "the good one");
  const auto warnings = save(folder / "c", {200, 300, 400});
  REQUIRE(warnings.size() == 1);
  CHECK_MESSAGE(contains(warnings[0], "step_00000100: is left: no save has made 'notes.txt' in it"), warnings[0]);
  CHECK(read_text(folder / "c/step_00000100/notes.txt") == "the good one");
  CHECK(checkpoint::find(folder / "c").path == folder / "c/step_00000400");
  CHECK(checkpoint::list(folder / "c").steps.size() == 2);
}

TEST_CASE("a 'latest' that cannot be replaced ends nothing") {
  const TemporaryFolder folder;
  fs::create_directories(folder / "c/latest/of/somebody");
  const auto warnings = save(folder / "c", {100, 200});
  REQUIRE(warnings.size() == 1);
  CHECK_MESSAGE(contains(warnings[0], folder / "c/latest"), warnings[0]);
  CHECK(checkpoint::find(folder / "c").path == folder / "c/step_00000200");
}

TEST_CASE("a step that is set aside leaves those that were set aside before") {
  const TemporaryFolder folder;
  for (const char* aside : {"", "-2", "-3"}) {
    save(folder / "c", {300});
    const auto lines = checkpoint::set_aside_later(folder / "c", 100);
    REQUIRE(lines.size() == 1);
    CHECK_MESSAGE(lines[0].ends_with(std::string("is now abandoned-step_00000300") + aside), lines[0]);
    CHECK(checkpoint::list(folder / "c").steps.empty());
    for (const char* all : {"", "-2", "-3"}) {
      CHECK(checkpoint::verify(folder / "c/abandoned-step_00000300" + all).empty());
      if (all == std::string(aside)) break;
    }
  }
}

TEST_CASE("of steps that were set aside the last three stay, and what somebody put into one stays with it") {
  const TemporaryFolder folder;
  const auto aside = [&] {
    std::set<std::string> names;
    for (const auto& item : fs::directory_iterator(folder / "c"))
      if (item.path().filename().string().starts_with(checkpoint::kAbandoned)) names.insert(item.path().filename());
    return names;
  };
  const auto save_all = [&](const std::vector<int64_t>& steps) {
    Rank rank({}, 0, 1);
    checkpoint::Saver saver(folder / "c", {9, 0}, rank.mesh, {});
    for (const int64_t step : steps) {
      saver.save(rank.state(step));
      saver.wait();
    }
  };
  save_all({100, 200, 300, 400, 500});
  const auto lines = checkpoint::set_aside_later(folder / "c", 100);
  CHECK(aside() ==
        std::set<std::string>{"abandoned-step_00000300", "abandoned-step_00000400", "abandoned-step_00000500"});
  REQUIRE(lines.size() == 5);
  CHECK_MESSAGE(contains(lines[4], "abandoned-step_00000200 is removed: of steps that were set aside the last 3 stay"),
                lines[4]);
  // An earlier step that is set aside later is the last one.
  save_all({150});
  const fs::path noted = folder / "c/abandoned-step_00000400";
  const auto then = fs::last_write_time(noted);
  write_text(noted / "notes.txt", "the good one");
  fs::last_write_time(noted, then);
  CHECK(checkpoint::set_aside_later(folder / "c", 100).size() == 2);
  save_all({160});
  const auto told = checkpoint::set_aside_later(folder / "c", 100);
  REQUIRE(told.size() == 2);
  CHECK_MESSAGE(contains(told[1], "warning: "), told[1]);
  CHECK_MESSAGE(contains(told[1], "abandoned-step_00000400: is left: no save has made 'notes.txt' in it"), told[1]);
  CHECK(aside() == std::set<std::string>{"abandoned-step_00000150", "abandoned-step_00000160",
                                         "abandoned-step_00000400", "abandoned-step_00000500"});
  CHECK(checkpoint::set_aside_later(folder / "c", 100).empty());  // where nothing is set aside nothing is removed
  CHECK(aside().size() == 4);
  // What a removal that was killed leaves is removed at the next start.
  fs::rename(folder / "c/abandoned-step_00000500", folder / "c/abandoned-step_00000500-2.tmp-77");
  save_all({170});
  CHECK(aside().size() == 3);
}
