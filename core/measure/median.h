// What repeated measurements say.
#pragma once

#include <algorithm>
#include <vector>

namespace ditto::report {

// Of at least one number.
inline double median(std::vector<double> numbers) {
  std::sort(numbers.begin(), numbers.end());
  const size_t half = numbers.size() / 2;
  return numbers.size() % 2 == 1 ? numbers[half] : (numbers[half - 1] + numbers[half]) / 2;
}

}  // namespace ditto::report
