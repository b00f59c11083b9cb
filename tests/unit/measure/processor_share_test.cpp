// Whether others keep the machine busy, by the seconds of processors that a computation had.
#include "core/measure/processor_share.h"

#include <doctest/doctest.h>

#include <chrono>
#include <string>

using ditto::report::ProcessorShare;

namespace {

// What is said of so many steps of a second, by the step in which it is.
std::string said_of(ProcessorShare& share, int steps, double had_s) {
  std::string said;
  for (int i = 0; i < steps; ++i)
    if (const auto line = share.add(had_s, 1); !line.empty()) said += std::to_string(i) + ": " + line;
  return said;
}

}  // namespace

TEST_CASE("a computation that twice in a row has less than a processor is said once, with what it had") {
  ProcessorShare share(2);
  const auto said = said_of(share, 60, 0.4);
  CHECK(said.starts_with("20: 2 threads had 0.4 of a processor (of 10 steps)"));  // the first step is left out
  CHECK(said.find("2 threads", 10) == std::string::npos);
}

TEST_CASE("one that has its processor, or lacks it for a stretch alone, is not said") {
  ProcessorShare share(8);
  CHECK(said_of(share, 60, 1.0).empty());
  CHECK(said_of(share, 11, 0.1).empty());
  CHECK(said_of(share, 60, 0.9).empty());
}

TEST_CASE("seconds of processors are those that this process has had") {
  const double before = ditto::report::processor_seconds();
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
  double spent = 0;
  while (std::chrono::steady_clock::now() < until || spent == 0) spent = ditto::report::processor_seconds() - before;
  CHECK(spent > 0);
  CHECK(spent < 60);
}
