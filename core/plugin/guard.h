// The boundary between the host and a plugin's code: whatever comes out of it is a ditto::Error that says where.
#pragma once

#include <concepts>
#include <string>
#include <string_view>
#include <utility>

#include <ditto/error.h>

#include "core/plugin/doing.h"

namespace ditto {

// In a catch block: rethrows the exception in flight as a ditto::Error with `place` in front. A ditto::Error keeps its
// kind, a lost connection is Error(distributed), everything else is Error(plugin). Backtraces are left out.
[[noreturn]] void rethrow_within(std::string_view place);

// fn(), a call into a plugin. `place` says whose it is and what it was doing: "model 'dit', block 7"; it may be a
// function that makes the text, which is then only called when something is thrown. A text, if it is not empty, is also
// what a crash in there is named by.
template <class Place, class Fn>
decltype(auto) guarded(const Place& place, Fn&& fn) {
  try {
    if constexpr (std::invocable<const Place&>) {
      return std::forward<Fn>(fn)();
    } else {
      const std::string_view text = place;
      const Doing doing(text.empty() ? Doing::current() : text.data());
      return std::forward<Fn>(fn)();
    }
  } catch (...) {
    if constexpr (std::invocable<const Place&>)
      rethrow_within(place());
    else
      rethrow_within(place);
  }
}

}  // namespace ditto
