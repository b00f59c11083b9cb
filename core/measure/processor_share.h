// How much of the processors a computation gets.
#pragma once

#include <cstdint>
#include <string>

namespace ditto::report {

double processor_seconds();  // that this process has had so far, over all of its threads

// Whether others keep the machine busy: a process that computes has one processor at least. Looks at stretches of at
// least ten steps and ten seconds, the first step of a process left out, and says it once, after two that agree.
class ProcessorShare {
 public:
  explicit ProcessorShare(int64_t threads) : threads_(threads) {}
  // Of one step: seconds of processors that it had, and seconds in which it waited for nothing else. The line to be
  // said; empty: none.
  std::string add(double had_s, double computed_s);

 private:
  int64_t threads_, steps_ = -1, low_ = 0;
  double had_ = 0, computed_ = 0;
  bool said_ = false;
};

}  // namespace ditto::report
