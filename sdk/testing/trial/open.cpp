#include <ditto/testing/open.h>

#include <dlfcn.h>

namespace ditto::testing {

namespace {

void* symbol(void* library, const char* name, const std::string& path) {
  if (void* found = dlsym(library, name)) return found;
  throw Error(ErrorKind::plugin, path, std::string("has no symbol ") + name, "end its source with DITTO_PLUGIN(…)");
}

}  // namespace

const void* open_plugin(const std::string& path, const std::string& kind, std::uint32_t abi) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) throw Error(ErrorKind::plugin, path, std::string("cannot be opened: ") + dlerror());
  const auto* stamp = static_cast<const Stamp*>(symbol(library, "ditto_plugin_stamp", path));
  if (stamp->kind.data() != kind)
    throw Error(ErrorKind::plugin, path, std::string("is a ") + stamp->kind.data(), "expected a " + kind);
  if (stamp->abi != abi)
    throw Error(ErrorKind::plugin, path, "was built for ABI " + std::to_string(stamp->abi) + " of kind '" + kind + "'",
                "build it again for " + std::to_string(abi));
  return reinterpret_cast<const void* (*)()>(symbol(library, kEntryName, path))();
}

OptionMap option_map(const OptionValues& values) {
  OptionMap map{"options", "the test", {}};
  for (const auto& [name, value] : values) map.given[name] = {value, "the test"};
  return map;
}

}  // namespace ditto::testing
