// One step of a run is made otherwise than its recipe says, where the environment says so: DITTO_TAMPER="scaled
// gradient 7". The plugins that include this are right in every other process; what they tamper with, a run's receipts
// truly tell.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

// `step` counts from 1.
inline bool tampers(const std::string& how, int64_t step) {
  const char* asked = std::getenv("DITTO_TAMPER");
  return asked && asked == how + " " + std::to_string(step);
}
