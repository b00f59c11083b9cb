// What trials on layouts of ranks share.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include <ditto/parallel/strategy.h>
#include <ditto/testing/open.h>

namespace ditto::testing {

// Of the library lib/ditto/plugins/parallel/libID.so beside the SDK's own.
std::shared_ptr<ParallelStrategy> strategy_beside_the_sdk(const std::string& id, const OptionValues& options,
                                                          const ParallelStrategy::Needs& needs);

// What the ranks of a layout found; the first of each.
struct TrialFindings {
  std::mutex mutex;
  std::string wrong, refused, lost;
  void add(std::string& to, const Mesh& mesh, const std::string& what);
  // Runs a rank's `body`, and notes what it returns or throws, which it throws on: the others need not wait for it.
  // `is_made`: the strategies are; while ranks meet, one that is refused is lost to the others. `running` says, where
  // there is one, what threw.
  void note(const Mesh& mesh, const bool& is_made, const std::function<std::string()>& running,
            const std::function<std::string()>& body);
};

// Ranks share the machine's cores.
class OneThread {
 public:
  OneThread();
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

}  // namespace ditto::testing
