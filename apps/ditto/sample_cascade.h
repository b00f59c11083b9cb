// `ditto sample` of a cascade: its stages sample one after another, each from the pictures of the one before it.
#pragma once

#include "apps/ditto/commands.h"
#include "apps/ditto/sample_requests.h"

namespace ditto {

// `run`: one stage, by arguments of its own, as this command samples from one run. Returns the first exit code that is
// not 0. Throws Error(config) for what a cascade does not take, and Error(checkpoint) for a stage without one.
int sample_cascade(const SampleArguments& arguments, const CommandLine& line,
                   const std::function<int(const SampleArguments&)>& run);

// Arguments as words of a command line, for ranks that are started.
std::vector<std::string> words_of(const SampleArguments& arguments, const CommandLine& line);

}  // namespace ditto
