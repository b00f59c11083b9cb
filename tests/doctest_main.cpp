#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "core/report/streams.h"

int main(int count, char** arguments) {
  ditto::report::end_without_libraries();
  return doctest::Context(count, arguments).run();
}
