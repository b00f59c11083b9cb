// Names of what a run does, on the time lines of NVIDIA's profilers (NVTX).
#pragma once

#include <cstdint>
#include <string>

namespace ditto {

// From one made to its end, in whatever threads. Where no profiler looks on, or Ditto was built without NVTX's header,
// it does nothing.
class ShownRange {
 public:
  explicit ShownRange(const std::string& name);
  ~ShownRange();
  ShownRange(const ShownRange&) = delete;
  ShownRange& operator=(const ShownRange&) = delete;
  static bool is_built();  // with that header

 private:
  std::uint64_t id_ = 0;
};

}  // namespace ditto
