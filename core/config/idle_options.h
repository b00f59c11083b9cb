// Options that act only with others (OptionReader::only_if), where somebody has overridden those others: they are left
// out instead of refused.
#pragma once

#include <ditto/options.h>

#include "sdk/src/idle_option.h"

namespace ditto {

// read(), which reads `given`, until it refuses no option as idle. Those that `goes_along(const IdleOption&)` names are
// taken out of `given`.
template <class GoesAlong, class Read>
auto read_without_idle(OptionMap& given, const GoesAlong& goes_along, const Read& read) {
  for (;;) {
    try {
      return read();
    } catch (const IdleOption& idle) {
      if (!goes_along(idle) || given.given.erase(idle.option()) == 0) throw;
    }
  }
}

}  // namespace ditto
