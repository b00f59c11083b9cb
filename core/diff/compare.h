// Two runs' events held against each other: where they part first.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/diff/events.h"

namespace ditto::diff {

// An event that is not the same.
struct Difference {
  enum class What {
    numbers,      // of A and of B
    shapes,       // of A and of B, or their dtypes
    copies_of_a,  // ranks of A that hold copies have other numbers
    copies_of_b,
  } what = What::numbers;
  Key key;
  Order order;
  std::string dtype, by;
  std::vector<int64_t> shape;  // of one sample, where it has samples
  Samples samples;             // the first that differ
  // Of those: A's and B's, or of copies those of two ranks, which have numbers then.
  Print a, b;
  int64_t rank_a = -1, rank_b = -1;
  std::string text_a, text_b;     // of shapes
  double relative = 0;            // relative_difference of a and b
  int64_t places = 0, among = 0;  // how many of the event's samples differ, of so many compared
};

struct Comparison {
  // The first difference of each pass of the first step that has one, in the order of passes; none: the same.
  std::vector<Difference> first;
  int64_t compared = 0, different = 0;  // tensors, each sample by itself
  int64_t rounded = 0;                  // of those: compared within rounding, since no rank has them whole
  int64_t only_a = 0, only_b = 0;       // events that the other has not
  int64_t in_parts = 0;                 // events that both have, in parts that cannot be put together
  int64_t parameters_alone = 0;         // of those of one alone: parameters' new weights, and averages
  bool is_same() const { return first.empty() && parameters_alone == 0; }
};

// With a tolerance, numbers are the same whose relative_difference is at most that; without one, whose bits are. Sums
// of gradients that no rank has whole are compared within the rounding of their dtype.
Comparison compare(const Events& a, const Events& b, double tolerance = 0);

// "A" and "B", or how the two runs are called.
std::string to_text(const Difference& difference, const std::string& a = "A", const std::string& b = "B");
nlohmann::ordered_json to_json(const Comparison& comparison);

}  // namespace ditto::diff
