// The contract tests on this plugin: what the host relies on. The library's path is the first argument.
#include <ditto/testing/checks.h>

int main(int count, char** arguments) {
  if (count != 2) return 2;
  const ditto::testing::OptionValues small{{"depth", int64_t{2}}, {"width", int64_t{32}}};
  return ditto::testing::finish({
      ditto::testing::check_model(arguments[1], ditto::testing::model_needs({3, 8, 8}, 3, 10), small),
      ditto::testing::check_model(arguments[1], ditto::testing::model_needs({1, 8, 4}, 2), small),  // without classes
      ditto::testing::try_model(arguments[1], ditto::testing::model_needs({3, 8, 8}, 3, 10),
                                small),  // by every strategy
  });
}
