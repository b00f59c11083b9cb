// All ranks do something that can fail on any of them, and all of them learn how it went.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ditto/parallel/mesh.h>

namespace ditto::checkpoint {

// What `work` returned on each rank. If it threw on any, throws on all: Error(checkpoint) "WHERE: the save failed on
// rank 2: …". Called by every member of the group.
std::vector<std::string> agree(const Group& group, const std::string& where, const std::function<std::string()>& work);

}  // namespace ditto::checkpoint
