#include "core/measure/libtorch.h"

#include <ATen/Version.h>
#include <caffe2/core/common.h>
#include <torch/version.h>
#include <boost/dll/runtime_symbol_info.hpp>

#include <ditto/error.h>

#include "core/measure/surroundings.h"

namespace ditto::report {

namespace {

// "2.11.0" of "2.11.0+cpu"
std::string release_of(const std::string& version) {
  return version.substr(0, version.find_first_not_of("0123456789."));
}

std::string built_with(const std::string& setting) {
  const auto& settings = caffe2::GetBuildOptions();
  const auto found = settings.find(setting);
  return found == settings.end() ? "" : found->second;
}

std::string library() {
  return boost::dll::symbol_location_ptr(reinterpret_cast<const void*>(&at::get_mkl_version)).string();
}

}  // namespace

std::string loaded_libtorch() { return release_of(built_with("TORCH_VERSION")); }

std::string libtorch_build() {
  std::string text;
  for (const auto& part : {"commit " + built_with("COMMIT_SHA").substr(0, 12), at::get_mkl_version(),
                           at::get_mkldnn_version(), "build " + build_of_library(library())})
    text += (text.empty() ? "" : "; ") + part;
  return text;
}

void require_libtorch() {
  const auto loaded = loaded_libtorch(), built = release_of(TORCH_VERSION);
  if (loaded.empty() || loaded == built) return;
  throw Error(ErrorKind::plugin, library(), "is LibTorch " + loaded + ", and Ditto was built with " + built,
              "unset LD_PRELOAD, or make lib/torch beside the program the LibTorch that it was built with");
}

}  // namespace ditto::report
