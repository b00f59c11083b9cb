// Starting a plugin of one's own.
#pragma once

#include <string>

namespace ditto {

struct NewArguments {
  std::string kind, name;
  std::string in = ".";  // the folder in which the new one is made
};
// Makes IN/NAME with one source and a CMakeLists.txt: sdk/template's model under that name, which compiles and trains
// as it is. Throws Error(config) for another kind than model, for a name that no plugin can have, and for a folder that
// is there already.
void new_plugin(const NewArguments& arguments);

}  // namespace ditto
