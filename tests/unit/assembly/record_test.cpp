// What a run notes in its checkpoints, read back.
#include "core/assembly/run_notes.h"

#include <doctest/doctest.h>

#include <cstdlib>

#include "core/measure/libtorch.h"
#include "core/measure/surroundings.h"
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

TEST_CASE("what kernel sets keep is noted and read back, each set's by itself") {
  const std::map<std::string, KernelChoices> kept{
      {"a", {{"8 8 A B", "1 2"}, {"9: x", "3"}}}, {"ab", {}}, {"b", {{"8", "4"}}}};
  auto notes = notes_of(kept);
  CHECK(notes.size() == 3);
  CHECK(notes.at("kernels.a: 8 8 A B") == "1 2");
  notes["updates"] = "3";
  for (const auto& [kernels, choices] : kept) CHECK(kept_by(kernels, notes) == choices);
  CHECK(kept_by("c", notes).empty());
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
  const std::map<std::string, std::string> notes{{"updates", "1"},
                                                 {"source", "blend of 2 (7, a), 1 (blend of 1 (8, b), 1 (9, c))"}};
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

TEST_CASE("a machine's record has the build of LibTorch, the libraries that compute, and variables that choose how") {
  const auto now = machine_record();
  CHECK(contains(now.at("torch_build"), "commit "));
  CHECK(contains(now.at("torch_build"), "; build "));
  CHECK(now.at("library.libm").size() == 16);  // of a build ID
  CHECK(now.contains("library.libc10"));
  CHECK(now.contains("library.libjpeg"));
  for (const char* name : {"ATEN_CPU_CAPABILITY", "MKL_CBWR", "DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA", "OMP_DYNAMIC",
                           "GLIBC_TUNABLES", "LD_PRELOAD", "NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG",
                           "OPENBLAS_CORETYPE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NCCL_ALGO"}) {
    const char* before = std::getenv(name);
    const std::string kept = before ? before : "";
    ::setenv(name, "some\nvalue", 1);
    CHECK_MESSAGE(contains(report::arithmetic_variables(), std::string(name) + "=some\\nvalue"), name);
    before ? ::setenv(name, kept.c_str(), 1) : ::unsetenv(name);
  }
  for (const char* name : {"MKL_VERBOSE", "ONEDNN_VERBOSE", "OMP_NUM_THREADS", "LD_LIBRARY_PATH", "HOME"}) {
    const char* before = std::getenv(name);
    const std::string kept = before ? before : "";
    ::setenv(name, "/some", 1);
    CHECK_MESSAGE(!contains(report::arithmetic_variables(), name), name);
    before ? ::setenv(name, kept.c_str(), 1) : ::unsetenv(name);
  }
}

TEST_CASE("a resume says what of the machine is another one, as far as bits depend on it") {
  const auto said = [](std::map<std::string, std::string> saved, std::map<std::string, std::string> now,
                       bool one_number) {
    std::string lines;
    compare_machines(saved, now, one_number, [&](const std::string& line) { lines += line + "\n"; });
    return lines;
  };
  for (const char* key : {"processor", "threads", "torch", "torch_build", "variables", "library.libm"}) {
    CAPTURE(std::string(key));
    CHECK(contains(said({{key, "a"}}, {{key, "b"}}, false), "changed since: " + std::string(key) + ": a -> b"));
    CHECK(said({{key, "a"}}, {{key, "a"}}, false).empty());
    CHECK(said({}, {{key, "b"}}, false).empty());  // of checkpoints that do not have it
    CHECK(said({{key, "a"}}, {{key, "b"}}, true).empty());
  }
  for (const char* key :
       {"ditto", "numerics_epoch", "library.libjpeg"})  // pictures are decoded before there is one number
    CHECK(contains(said({{key, "a"}}, {{key, "b"}}, true), "changed since"));
  // Versions of one epoch give the same numbers.
  for (const char* epoch : {"1", "2"}) {
    const auto line =
        said({{"ditto", "0.2.0"}, {"numerics_epoch", "1"}}, {{"ditto", "0.3.0"}, {"numerics_epoch", epoch}}, true);
    CHECK_MESSAGE(contains(line, "numerics_epoch: 1 -> 2 (Ditto's numbers have changed: equal within rounding") ==
                      (epoch == std::string("2")),
                  line);
    CHECK_MESSAGE(!contains(line, "0.3.0"), line);
  }
  CHECK(contains(said({{"ditto", "0.2.0"}}, {{"ditto", "0.3.0"}, {"numerics_epoch", "1"}}, true), "0.2.0 -> 0.3.0"));
  CHECK(said({{"updates", "1"}}, {{"updates", "2"}}, false).empty());
}
