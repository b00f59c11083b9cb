// What became of pictures that were put into shards, for people.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "core/dataset/prepare.h"

namespace CLI {
class App;
}

namespace ditto {

// What is left out, what is bad (the first ones, and where the others are named) and what else is worth knowing.
// `out`: the shards' folder.
void print_prepared(const Prepared& made, const std::string& out, std::ostream& to);
// Up to twenty of them, a line each, and of more how many and `rest`: where they stand.
void print_bad(const std::vector<std::string>& bad, const std::string& rest, std::ostream& to);
void add_fit_option(CLI::App& command, Fit& fit);

}  // namespace ditto
