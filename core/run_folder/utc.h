// The time, as logs and locks write it.
#pragma once

#include <string>

namespace ditto::report {

std::string utc_text();  // now: "2026-11-21T10:53:01.123Z"

}  // namespace ditto::report
