// What a contract test found.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace ditto::testing {

class Report {
 public:
  explicit Report(std::string subject) : subject_(std::move(subject)) {}

  // One promise of the interface. `body` returns what is wrong, or nothing where the promise holds; an exception is a
  // broken promise too.
  void check(const std::string& promise, const std::function<std::string()>& body);
  // What looks at several promises: what it throws between them is a broken one too.
  void guard(const std::function<void()>& body);
  // A promise that does not apply here, and why.
  void skip(const std::string& promise, const std::string& why);

  bool passed() const;           // at least one promise was checked, and all of them hold
  std::string text() const;      // a line a promise
  std::string failures() const;  // only what is broken; empty when passed

 private:
  struct Finding {
    std::string promise, problem;
    bool skipped;
  };
  std::string subject_;
  std::vector<Finding> findings_;
};

// Prints the reports to standard output. 0 if all have passed, else 1: what main returns.
int finish(const std::vector<Report>& reports);

}  // namespace ditto::testing
