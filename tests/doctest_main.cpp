#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>

#include "core/console/streams.h"

namespace {

unsigned cases_run = 0;

struct Count final : doctest::IReporter {
  explicit Count(const doctest::ContextOptions&) {}
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats& all) override { cases_run = all.numTestCasesPassingFilters; }
  void test_case_start(const doctest::TestCaseData&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};

REGISTER_LISTENER("count", 1, Count);

}  // namespace

int main(int count, char** arguments) {
  ditto::report::end_without_libraries();
  doctest::Context context(count, arguments);
  const int code = context.run();
  if (context.shouldExit() || code != 0 || cases_run > 0) return code;  // it was asked for a list, or for help
  std::fputs("error: no test case matches the filters: nothing was tested\n", stderr);
  return 1;
}
