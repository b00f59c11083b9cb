// Opens a plugin by its path, without a host.
#pragma once

#include <map>
#include <memory>
#include <string>

#include <ditto/plugin.h>

namespace ditto::testing {

using OptionValues = std::map<std::string, OptionValue>;

// What the entry function of the plugin at `path` returns. The library stays open. Throws Error(plugin) if the file
// cannot be opened, has no stamp, or is of another kind or ABI.
const void* open_plugin(const std::string& path, const std::string& kind, std::uint32_t abi);

OptionMap option_map(const OptionValues& values);

template <class Interface>
std::shared_ptr<Interface> make(const std::string& path, const OptionValues& options = {},
                                const typename Interface::Needs& needs = {}) {
  const auto* factory = static_cast<const Factory<Interface>*>(open_plugin(path, Interface::kKind, Interface::kAbi));
  OptionReader defaults(option_map({})), reader(option_map(options));
  factory->declare(defaults);  // throws where one is not allowed
  return factory->make(reader, needs);
}

}  // namespace ditto::testing
