// Opens one plugin of the build folder without the registry.
#pragma once

#include <dlfcn.h>

#include <stdexcept>
#include <string>

#include <ditto/plugin.h>

#include "tests/support/files.h"

namespace ditto::test {

// `folder` is the kind's folder, "schedulers". The library stays open: closing one that has touched LibTorch crashes.
template <class Interface>
const Factory<Interface>& open_plugin(const std::string& folder, const std::string& name) {
  const std::string path = test::plugin_folder() + "/" + folder + "/lib" + name + ".so";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) throw std::runtime_error(dlerror());
  using Entry = const void* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(library, kEntryName));
  if (!entry) throw std::runtime_error(path + " has no " + kEntryName);
  return *static_cast<const Factory<Interface>*>(entry());
}

template <class Interface>
std::shared_ptr<Interface> make_plugin(const std::string& folder, const std::string& name,
                                       const std::map<std::string, OptionValue>& options = {},
                                       const typename Interface::Needs& needs = {}) {
  OptionMap given{name, "test.toml:1:1", {}};
  for (const auto& [key, value] : options) given.given[key] = {value, "test.toml:1:1"};
  OptionReader reader(given);
  return open_plugin<Interface>(folder, name).make(reader, needs);
}

}  // namespace ditto::test
