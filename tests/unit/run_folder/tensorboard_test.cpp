#include "core/run_folder/tensorboard.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "core/sample/grid.h"
#include "support/files.h"

using namespace ditto;
using Kind = formats::EventRecord::Kind;

namespace {

void write_steps(report::TensorBoardLog& log, int64_t from, int64_t to, double loss) {
  for (int64_t step = from; step <= to; ++step) {
    report::StepRecord record;
    record.step = step;
    record.loss = loss;
    record.losses = {{"mse", loss / 2}};
    record.tflops = 0.5;
    log.add(record);
  }
}

const formats::Picture kSheet{3, 2, 1, {0, 50, 100, 150, 200, 250}};

// Six steps; then a resume from step 4 that goes to step 8.
void write_run(const std::string& folder) {
  {
    report::TensorBoardLog log(folder, 1);
    log.recipe(0, "[run]\nname = \"x\"\n");
    log.options(0, formats::parse_toml("[run]\nname = \"x\"\nsteps = 8\ndeterministic = true\n[lr_schedule]\nlr = 0.5\n"
                                       "[data]\nsize = [8, 8]\n[record]\nnote = \"left out\"\n",
                                       "x.toml"));
    write_steps(log, 1, 6, 1.0);
    log.samples(6, kSheet);
  }
  report::TensorBoardLog log(folder, 5);
  write_steps(log, 5, 8, 2.0);
  report::ValidationRecord validation;
  validation.step = 8;
  validation.loss = 0.25;
  validation.strata = {0.125, 0.375};
  log.add(validation);
  log.samples(8, kSheet);
}

}  // namespace

TEST_CASE("a run and its resume write scalars, sheets and the recipe") {
  // The script tests/integration/training/tensorboard_test.py reads the same files by TensorBoard itself.
  const test::TemporaryFolder temporary;
  const char* kept = std::getenv("DITTO_KEEP_EVENTS");
  const std::string folder = kept != nullptr ? kept : temporary.path().string();
  write_run(folder);
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  REQUIRE(files.size() == 2);
  const auto first = formats::read_events(files[0]), second = formats::read_events(files[1]);
  CHECK(first.damage.empty());
  CHECK(second.damage.empty());
  const auto find = [](const formats::EventFile& file, const std::string& tag, int64_t step) {
    const auto it = std::find_if(file.records.begin(), file.records.end(),
                                 [&](const auto& one) { return one.tag == tag && one.step == step; });
    return it == file.records.end() ? std::nullopt : std::optional(*it);
  };
  CHECK(find(first, "train/loss", 6)->scalar == 1.0f);
  CHECK(find(second, "train/loss", 5)->scalar == 2.0f);
  CHECK(find(second, "loss/mse", 8)->scalar == 1.0f);
  CHECK(find(second, "validation/stratum_1", 8)->scalar == 0.375f);
  CHECK(find(first, "recipe", 0)->bytes == "    [run]\n    name = \"x\"\n    ");
  const std::map<std::string, formats::HParam> options{{"run.name", std::string("x")},
                                                       {"run.steps", 8.0},
                                                       {"run.deterministic", true},
                                                       {"lr_schedule.lr", 0.5},
                                                       {"data.size", std::string("[8, 8]")}};
  const bool are_all_there = find(first, "_hparams_/session_start_info", 0)->hparams == options;
  CHECK(are_all_there);
  CHECK(find(first, "samples", 6)->width == 3);
  CHECK_FALSE(find(first, "train/mfu", 1));
  const auto start = std::find_if(second.records.begin(), second.records.end(),
                                  [](const auto& one) { return one.kind == Kind::session_start; });
  REQUIRE(start != second.records.end());
  CHECK(start->step == 5);
}

TEST_CASE("with no time between flushes, a scalar is in the file at once") {
  const test::TemporaryFolder folder;
  report::TensorBoardLog log(folder.path().string(), 1, 0);
  write_steps(log, 1, 1, 3.0);
  const auto records = formats::read_events(log.path()).records;
  CHECK(std::any_of(records.begin(), records.end(), [](const auto& one) { return one.tag == "train/loss"; }));
}
