#include "core/report/libtorch.h"

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <boost/dll/runtime_symbol_info.hpp>
#include <torch/version.h>

#include <ditto/error.h>

namespace ditto::report {

namespace {

// "2.11.0" of "2.11.0+cpu"
std::string release_of(const std::string& version) { return version.substr(0, version.find_first_not_of("0123456789.")); }

}  // namespace

std::string loaded_libtorch() {
  static const std::string kKey = "TORCH_VERSION=";
  const auto config = at::show_config();
  const auto at = config.find(kKey);
  return at == std::string::npos ? "" : release_of(config.substr(at + kKey.size()));
}

std::string libtorch_build() {
  std::string line;
  const auto config = at::show_config();
  const auto end = config.find("  - Build settings");
  for (const char c : config.substr(0, end)) {
    if (c == '\n') {
      if (!line.empty()) line += ';';
    } else if (c != ' ' || (!line.empty() && line.back() != ' ')) {
      line += c;
    }
  }
  while (!line.empty() && (line.back() == ';' || line.back() == ' ')) line.pop_back();
  return line;
}

void require_libtorch() {
  const auto loaded = loaded_libtorch(), built = release_of(TORCH_VERSION);
  if (loaded.empty() || loaded == built) return;
  throw Error(ErrorKind::plugin, boost::dll::symbol_location_ptr(reinterpret_cast<const void*>(&at::show_config)).string(),
              "is LibTorch " + loaded + ", and Ditto was built with " + built,
              "unset LD_PRELOAD, or make lib/torch beside the program the LibTorch that it was built with");
}

}  // namespace ditto::report
