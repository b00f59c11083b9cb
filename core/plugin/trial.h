// Opening plugins in another process first: one that crashes, ends the process or does not come back while it is opened
// takes only that process with it, and can be named.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/plugin/registry.h"

namespace ditto {

// The two below run `ditto plugins open`, so they are for the program ditto alone. The time limit is
// DITTO_PLUGIN_TIMEOUT_S (60) seconds.
std::optional<TrialFailure> try_plugins(const std::vector<std::string>& paths);
// Only those that are new to the user's cache of what has come back from this program, which is then told of them. A
// cache that cannot be written costs time.
std::optional<TrialFailure> try_new_plugins(const std::vector<std::string>& paths);

// `ditto plugins open PATH…`: the other side.
[[noreturn]] void run_trial(const std::vector<std::string>& paths);

}  // namespace ditto
