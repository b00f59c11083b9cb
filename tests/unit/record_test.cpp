// What a run notes in its checkpoints, read back.
#include "core/train/record.h"

#include <doctest/doctest.h>

#include "support/files.h"

using namespace ditto;
using test::contains;
using test::error_of;

TEST_CASE("notes that are missing, or no such numbers, are refused by name") {
  const auto refusal = [](std::map<std::string, std::string> notes, const std::string& name) {
    notes.emplace("updates", "3");
    return error_of(ErrorKind::checkpoint, [&] {
      const RunNotes read(notes, "runs/a/step_1");
      name == "loss_scale" ? (void)read.positive(name) : (void)read.whole(name);
    });
  };
  CHECK(refusal({}, "updates").empty());
  CHECK(refusal({{"updates", "0"}}, "updates").empty());
  CHECK(refusal({{"loss_scale", "0.5"}}, "loss_scale").empty());
  CHECK(contains(refusal({}, "skipped_in_a_row"),
                 "runs/a/step_1/state.json: its note 'skipped_in_a_row': it is missing"));
  for (const char* value : {"", "-1", "3.0", "3 ", "x", "1e3", "9223372036854775808"})
    CHECK_MESSAGE(contains(refusal({{"updates", value}}, "updates"), "a whole number, 0 or more, is expected"), value);
  for (const char* value : {"", "0", "-1", "nan", "inf", "1e999", "1x"})
    CHECK_MESSAGE(contains(refusal({{"loss_scale", value}}, "loss_scale"), "a number above 0 is expected"), value);
}

TEST_CASE("samples that were left out are read back by number; older checkpoints note none") {
  const auto read = [](std::map<std::string, std::string> notes) {
    notes.emplace("updates", "3");
    return RunNotes(notes, "step_1").numbers("left_out", 100);
  };
  CHECK(read({}).empty());
  CHECK(read({{"left_out", "7"}}) == std::set<int64_t>{7});
  CHECK(read({{"left_out", "0,3,99"}}) == std::set<int64_t>{0, 3, 99});
  for (const char* value :
       {"", ",", "3,", ",3", "3,,4", "3, 4", "4,3", "3,3", "-1", "100", "3;4", "x", "9223372036854775808"})
    CHECK_MESSAGE(contains(error_of(ErrorKind::checkpoint,
                                    [&] {
                                      read({{"left_out", value}});
                                    }),
                           "step_1/state.json: its note 'left_out': numbers of the data's samples"),
                  value);
}

TEST_CASE("a checkpoint that no run has saved is none to go on from") {
  const std::map<std::string, std::string> notes{{"shapes", "x"}};
  const auto error = error_of(ErrorKind::checkpoint, [&] { RunNotes(notes, "imported"); });
  CHECK(error ==
        "imported: holds weights and nothing else of a run, as imported ones do; "
        "start a run from them with --set run.init_from=imported");
}

TEST_CASE("data is compared as far as the checkpoint knew it") {
  const std::map<std::string, std::string> notes{{"updates", "1"}, {"source", "7 samples, abc"}};
  const RunNotes read(notes, "step_1");
  std::vector<std::string> said;
  const auto compare = [&](const std::string& now) {
    return error_of(ErrorKind::config,
                    [&] { read.require_data(now, [&](const std::string& line) { said.push_back(line); }); });
  };
  CHECK(compare("7 samples, abc").empty());
  CHECK(said.empty());
  CHECK(compare("7 samples, abc, contents def").empty());
  REQUIRE(said.size() == 1);
  CHECK(contains(said[0], "7 samples, abc"));
  CHECK(read.knows("7 samples, abc"));
  CHECK(read.knows("7 samples, abc, contents def"));
  CHECK(!read.knows("7 samples, abd"));
  for (const char* other : {"", "7 samples, abd", "7 samples, abcd", "7 samples", "8 samples, abc, contents def"})
    CHECK_MESSAGE(contains(compare(other), "learned from other data"), other);
}

TEST_CASE("a blend is the data that was noted where each of its parts goes on as it was") {
  const std::map<std::string, std::string> notes{{"source", "blend of 2 (7, a), 1 (blend of 1 (8, b), 1 (9, c))"}};
  const RunNotes read(notes, "step_1");
  for (const char* same : {"blend of 2 (7, a), 1 (blend of 1 (8, b), 1 (9, c))",
                           "blend of 2 (7, a, ends x), 1 (blend of 1 (8, b), 1 (9, c))",
                           "blend of 2 (7, a, contents y, ends x), 1 (blend of 1 (8, b, ends y), 1 (9, c, ends z))"})
    CHECK_MESSAGE(read.knows(same), same);
  for (const char* other :
       {"blend of 2 (7, a), 1 (blend of 1 (8, b), 1 (9, c)), 1 (10, d)",
        "blend of 2 (7, a), 1 (blend of 1 (8, b), 1 (9, c), 1 (10, d))",
        "blend of 2 (7, ax), 1 (blend of 1 (8, b), 1 (9, c))", "blend of 1 (7, a), 1 (blend of 1 (8, b), 1 (9, c))",
        "blend of 2 (7, a, ends x), 1 (blend of 1 (8, b), 1 (9, d))", "blend of 2 (7, a)"})
    CHECK_MESSAGE(!read.knows(other), other);
}
