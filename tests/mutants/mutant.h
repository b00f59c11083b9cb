// Which mutant is switched on: the number in the environment variable DITTO_MUTANT. With DITTO_MUTANT_TRACE=FILE the
// number of every mutant whose place was reached is added to that file.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

namespace ditto_mutant {

inline void trace(int number) {
  static const char* const file = std::getenv("DITTO_MUTANT_TRACE");
  if (!file) return;
  static bool seen[1 << 20];
  if (std::exchange(seen[number], true)) return;
  char text[16];
  const int length = std::snprintf(text, sizeof text, "%d\n", number);
  const int out = ::open(file, O_WRONLY | O_CREAT | O_APPEND, 0644);
  if (out < 0 || ::write(out, text, static_cast<size_t>(length)) != length) std::abort();
  ::close(out);
}

inline bool on(int number) {
  static const int chosen = [] {
    const char* text = std::getenv("DITTO_MUTANT");
    return text ? std::atoi(text) : -1;
  }();
  trace(number);
  return number == chosen;
}

inline int one(int number) { return on(number) ? 1 : 0; }
inline int sign(int number) { return on(number) ? -1 : 1; }
inline int scale(int number) { return on(number) ? 2 : 1; }

// A group of one, in which every collective gives back what it got.
template <class Group>
const Group& alone(int number, const Group& group) {
  static const Group self;
  return on(number) ? self : group;
}

template <class Group, class Tensor>
Tensor all_reduce(int number, const Group& group, Tensor x) {
  x = group.all_reduce(x);
  return on(number) ? group.all_reduce(x) : x;
}

}  // namespace ditto_mutant
