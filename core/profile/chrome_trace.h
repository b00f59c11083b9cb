// What the threads of all ranks do for a while, as a Chrome trace (chrome://tracing, https://ui.perfetto.dev): the ops,
// by the variants that compute them, LibTorch's calls, autograd's functions, collectives, and what else is recorded.
#pragma once

#include <string>

#include <ATen/record_function.h>

#include <ditto/parallel/mesh.h>

namespace ditto {

class ChromeTrace {
 public:
  // Throws Error(config) where the file's folder is not there, or takes no files: before it is worked for.
  static void require_writable(const std::string& file);

  // From now on; one at a time. It costs about a microsecond a call.
  ChromeTrace();
  ~ChromeTrace();
  ChromeTrace(const ChromeTrace&) = delete;
  ChromeTrace& operator=(const ChromeTrace&) = delete;

  // Until now. Rank 0 writes the file: a rank is a process of it, and times are in microseconds since the first call,
  // by the clocks of the ranks' machines. Called by all ranks. Throws Error(config) where the file cannot be written.
  void write(const std::string& file, const Mesh& mesh);

 private:
  void end();
  at::CallbackHandle handle_{};
};

}  // namespace ditto
