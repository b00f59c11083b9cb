// Slurm's short way to write the names of machines: "gpu[07-08,11],x1".
#pragma once

#include <string>
#include <vector>

namespace ditto {

// The names that `list` stands for, in the order of `scontrol show hostnames`: gpu07, gpu08, gpu11, x1. Of several
// brackets in a name the last counts fastest and then the first, the second, …; what stands behind the last bracket
// belongs to each name. Throws Error(config) that names `where` for what is no such list, or one of more than 65,536
// names.
std::vector<std::string> expand_node_list(const std::string& list, const std::string& where);

}  // namespace ditto
