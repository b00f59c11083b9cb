#include <ditto/testing/report.h>

#include <algorithm>
#include <cstdio>

#include <c10/util/Exception.h>

namespace ditto::testing {

namespace {

// What `body` returns, or that it has thrown.
std::string problem_of(const std::function<std::string()>& body) {
  try {
    return body();
  } catch (const c10::Error& error) {
    return std::string("threw: ") + error.what_without_backtrace();
  } catch (const std::exception& error) {
    return std::string("threw: ") + error.what();
  } catch (...) {
    return "threw what is no std::exception";
  }
}

}  // namespace

void Report::check(const std::string& promise, const std::function<std::string()>& body) {
  findings_.push_back({promise, problem_of(body), false});
}

void Report::guard(const std::function<void()>& body) {
  const auto problem = problem_of([&] { return body(), std::string(); });
  if (!problem.empty()) findings_.push_back({"it answers what it is asked between the others", problem, false});
}

void Report::skip(const std::string& promise, const std::string& why) { findings_.push_back({promise, why, true}); }

bool Report::passed() const {
  const auto checked = [](const Finding& f) { return !f.skipped; };
  return failures().empty() && std::any_of(findings_.begin(), findings_.end(), checked);
}

std::string Report::text() const {
  std::string text = subject_ + '\n';
  for (const Finding& f : findings_) {
    const bool holds = f.problem.empty();
    text += (holds ? "  ok    " : f.skipped ? "  skip  " : "  FAIL  ") + f.promise;
    text += holds ? "\n" : ": " + f.problem + '\n';
  }
  return text;
}

std::string Report::failures() const {
  std::string text;
  for (const Finding& f : findings_)
    if (!f.skipped && !f.problem.empty()) text += subject_ + ": " + f.promise + ": " + f.problem + '\n';
  return text;
}

int finish(const std::vector<Report>& reports) {
  bool passed = !reports.empty();
  for (const Report& report : reports) {
    std::fputs(report.text().c_str(), stdout);
    passed = passed && report.passed();
  }
  std::puts(passed ? "passed" : "FAILED");
  return passed ? 0 : 1;
}

}  // namespace ditto::testing
