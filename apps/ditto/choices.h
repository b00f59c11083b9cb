// The words that an option takes.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class Option;
}

namespace ditto {

// Those that the command line checks it against; none: it takes others.
std::vector<std::string> choices_of(const CLI::Option& option);

}  // namespace ditto
