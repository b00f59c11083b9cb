// Whether all ranks start with the same: recipe, plugins, program, data.
#pragma once

#include <functional>
#include <map>
#include <string>

#include <ditto/data.h>

#include "core/config/recipe.h"
#include "core/plugin/registry.h"

namespace c10d {
class Store;
}

namespace ditto {

// What has to be equal on all ranks, by name: "run.seed" -> "1".
using Facts = std::map<std::string, std::string>;

// Every option but those that name places, the plugins that were opened, the program and the libraries it stands on;
// libraries by the hash of their file.
Facts facts_of(const Recipe& recipe, const Registry& registry);
// `name`: "data" or "validation data".
Facts facts_of(const Source& source, const std::string& name);
Facts facts_of_checkpoint(const std::string& path);

// Called by all ranks with a `topic` that each uses once; through their store, before they form groups, since what
// differs may be the groups. Each compares a hash with rank 0's, and the facts only where it differs: then it throws
// Error(kind) "WHERE: run.seed = 2, but rank 0 has 1; …", which ends the others.
void expect_same(c10d::Store& store, int rank, const std::string& topic, const Facts& facts, ErrorKind kind,
                 const std::string& where);

}  // namespace ditto
