#include "core/run_folder/metrics.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include <ditto/error.h>

#include "support/files.h"

using namespace ditto;
using report::MetricsLog;
using report::StepRecord;
using test::read_text;
using test::write_text;

namespace {

StepRecord record(int64_t step) {
  StepRecord out;
  out.step = step;
  out.samples = 16 * step;
  out.loss = 1.0 / static_cast<double>(step);
  return out;
}

std::vector<int64_t> steps_in(const std::string& path) {
  std::istringstream text(read_text(path));
  std::vector<int64_t> steps;
  for (std::string line; std::getline(text, line);) steps.push_back(nlohmann::json::parse(line).at("step"));
  return steps;
}

}  // namespace

TEST_CASE("a line of metrics has every promised field") {
  StepRecord one = record(3);
  one.losses = {{"mse", 0.25}, {"vlb", 0.5}};
  one.tflops = 0.125;
  const auto json = nlohmann::json::parse(to_json(one));
  for (const char* field : {"step", "samples", "loss", "grad_norm", "lr", "step_s", "samples_per_s", "tflops", "mfu",
                            "mem_bytes", "data_wait"})
    CHECK_MESSAGE(json.contains(field), field);
  CHECK(json["step"] == 3);
  CHECK(json["samples"] == 48);
  CHECK(json["tflops"] == 0.125);
  CHECK(json["mfu"].is_null());
  CHECK(json["losses"]["vlb"] == 0.5);
  CHECK_FALSE(json.contains("not_finite"));
  CHECK_FALSE(json.contains("skipped"));
}

TEST_CASE("a traced step tells its calls by axes, call and pass, and its memory") {
  StepRecord one = record(1);
  CHECK_FALSE(nlohmann::json::parse(to_json(one)).contains("comm"));
  one.mem = {{"gradients", 64}, {"parameters", 128}};
  CHECK(nlohmann::json::parse(to_json(one))["comm"].empty());  // one rank calls nobody
  one.comm = {{"tensor", "all_reduce", "forward", 8, 4096, 0.25}, {"tensor", "all_reduce", "backward", 4, 2048, 0}};
  const auto json = nlohmann::json::parse(to_json(one));
  CHECK(json["comm"]["tensor"]["all_reduce"]["forward"]["calls"] == 8);
  CHECK(json["comm"]["tensor"]["all_reduce"]["forward"]["waited_s"] == 0.25);
  CHECK(json["comm"]["tensor"]["all_reduce"]["backward"]["bytes"] == 2048);
  CHECK(json["mem"]["gradients"] == 64);
}

TEST_CASE("losses and norms read back as the same doubles, whatever their bits") {
  uint64_t bits = 0x9e3779b97f4a7c15;
  for (int i = 0; i < 2000; ++i) {
    bits = bits * 6364136223846793005u + 1442695040888963407u;
    StepRecord one = record(1);
    one.loss = std::bit_cast<double>(bits);
    one.grad_norm = static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(bits >> 32)));
    if (!std::isfinite(one.loss) || !std::isfinite(one.grad_norm)) continue;
    const auto json = nlohmann::json::parse(to_json(one));
    CHECK(std::bit_cast<uint64_t>(json["loss"].get<double>()) == bits);
    CHECK(json["grad_norm"].get<double>() == one.grad_norm);
  }
}

TEST_CASE("what is not finite is null, and named") {
  StepRecord one = record(1);
  one.loss = std::nan("");
  one.grad_norm = -std::numeric_limits<double>::infinity();
  one.losses["mse"] = std::numeric_limits<double>::infinity();
  one.skipped = true;
  const auto json = nlohmann::json::parse(to_json(one));
  CHECK(json["loss"].is_null());
  CHECK(json["grad_norm"].is_null());
  CHECK(json["losses"]["mse"].is_null());
  CHECK(json["not_finite"] == nlohmann::json{{"loss", "nan"}, {"grad_norm", "-inf"}, {"losses.mse", "inf"}});
  CHECK(json["skipped"] == true);
}

TEST_CASE("a line is in the file when append returns") {
  const test::TemporaryFolder folder;
  MetricsLog log(folder.path().string());
  log.append(record(1));
  CHECK(steps_in(folder / "metrics.jsonl") == std::vector<int64_t>{1});
}

TEST_CASE("validation has a file of its own, so that metrics.jsonl has one line a step") {
  const test::TemporaryFolder folder;
  MetricsLog log(folder.path().string());
  log.append(record(1));
  report::ValidationRecord validation;
  validation.step = 1;
  validation.loss = 0.5;
  validation.strata = {0.25, 0.75};
  validation.measures = {{"psnr", 24.5}};
  log.append(validation);
  CHECK(steps_in(folder / "metrics.jsonl").size() == 1);
  const auto json = nlohmann::json::parse(read_text(folder / "validation.jsonl"));
  CHECK(json["validation_loss"] == 0.5);
  CHECK(json["strata"] == nlohmann::json{0.25, 0.75});
  CHECK(json["measures"] == nlohmann::json{{"psnr", 24.5}});
}

TEST_CASE("a resume keeps the lines up to its step and goes on behind them") {
  const test::TemporaryFolder folder;
  {
    MetricsLog log(folder.path().string());
    for (int step = 1; step <= 9; ++step) log.append(record(step));
  }
  const std::string before = read_text(folder / "metrics.jsonl");
  MetricsLog log(folder.path().string());
  const auto cut = log.cut_back(6);
  CHECK(cut.kept == 6);
  CHECK(cut.later == 3);
  CHECK(cut.damaged == 0);
  CHECK(before.starts_with(read_text(folder / "metrics.jsonl")));
  for (int step = 7; step <= 9; ++step) log.append(record(step));
  CHECK(read_text(folder / "metrics.jsonl") == before);
}

TEST_CASE("a last line cut at any byte is dropped, and nothing else") {
  const test::TemporaryFolder folder;
  const std::string whole = to_json(record(1)) + "\n" + to_json(record(2)) + "\n", torn = to_json(record(3)) + "\n";
  for (size_t length = 1; length < torn.size(); ++length) {
    write_text(folder / "metrics.jsonl", whole + torn.substr(0, length));
    MetricsLog log(folder.path().string());
    // All but the line's end may be there: then the line is whole, and stays.
    const bool complete = length == torn.size() - 1;
    CHECK(log.cut_back(5).kept == (complete ? 3 : 2));
    log.append(record(4));
    CHECK(steps_in(folder / "metrics.jsonl").back() == 4);
    CHECK(steps_in(folder / "metrics.jsonl").size() == (complete ? 4 : 3));
  }
}

TEST_CASE("a torn line in an old file swallows no new one, even without a cut") {
  const test::TemporaryFolder folder;
  write_text(folder / "metrics.jsonl", to_json(record(1)) + "\n{\"step\": 2, \"lo");
  MetricsLog log(folder.path().string());
  log.append(record(3));
  CHECK(log.cut_back(3).damaged == 1);
  CHECK(steps_in(folder / "metrics.jsonl") == std::vector<int64_t>{1, 3});
}

TEST_CASE("lines that are no steps are dropped: zeros of a machine that went down, other JSON") {
  const test::TemporaryFolder folder;
  write_text(folder / "metrics.jsonl", to_json(record(1)) + "\n" + std::string(40, '\0') +
                                           "\n[1]\n{\"step\":\"2\"}\n\n" + to_json(record(2)) + "\n");
  MetricsLog log(folder.path().string());
  CHECK(log.cut_back(2).damaged == 4);
  CHECK(steps_in(folder / "metrics.jsonl") == std::vector<int64_t>{1, 2});
}

TEST_CASE("a run that starts over forgets all lines") {
  const test::TemporaryFolder folder;
  MetricsLog log(folder.path().string());
  log.append(record(1));
  log.cut_back(-1);
  CHECK(read_text(folder / "metrics.jsonl").empty());
}

TEST_CASE("a cut leaves no other file behind") {
  const test::TemporaryFolder folder;
  MetricsLog log(folder.path().string());
  for (int step = 1; step <= 3; ++step) log.append(record(step));
  log.cut_back(1);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) files += entry.is_regular_file();
  CHECK(files == 2);
}

TEST_CASE("a full disk is an error that says so") {
  if (!std::filesystem::exists("/dev/full")) return;
  report::JsonLines log("/dev/full");
  CHECK_THROWS_WITH_AS(log.append("{}"), doctest::Contains("No space left"), Error);
}
