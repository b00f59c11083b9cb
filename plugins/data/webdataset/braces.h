// Names of shards with braces, as shells and Energon's split.yaml have them.
#pragma once

#include <string>
#include <vector>

namespace webdataset {

// "train-{000..127}.tar", "{a,b}/{0..9..3}.tar", nested ones too; what is no list and no range stays as it is. Throws
// Error(data) at `where` for more than a million names, and for a name of over 4096 bytes.
std::vector<std::string> with_braces_expanded(const std::string& name, const std::string& where);

}  // namespace webdataset
