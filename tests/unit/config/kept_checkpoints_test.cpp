// How many checkpoints a run keeps, against a run that saves and forgets them one after another.
#include <doctest/doctest.h>

#include <deque>
#include <set>

#include "core/config/run_options.h"

namespace {

int64_t kept_by(const ditto::CheckpointOptions& options, int64_t steps) {
  std::set<int64_t> kept;
  std::deque<int64_t> newest;
  for (int64_t step = steps == 0 ? 0 : 1; step <= steps; ++step) {
    if (step != steps && (options.every == 0 || step % options.every != 0)) continue;
    kept.insert(step);
    newest.push_back(step);
    if (static_cast<int64_t>(newest.size()) <= options.keep) continue;
    const auto old = newest.front();
    newest.pop_front();
    if (options.keep_every == 0 || old % options.keep_every != 0) kept.erase(old);
  }
  return static_cast<int64_t>(kept.size());
}

}  // namespace

TEST_CASE("a run keeps no more checkpoints than it says, and those where none is kept for ever") {
  for (int64_t steps = 0; steps <= 30; ++steps)
    for (const int64_t every : {0, 1, 3, 7, 40})
      for (const int64_t keep : {1, 3, 50})
        for (const int64_t keep_every : {0, 2, 6, 50}) {
          ditto::CheckpointOptions options;
          options.every = every, options.keep = keep, options.keep_every = keep_every;
          const auto kept = kept_by(options, steps), most = options.most_kept(steps);
          INFO(steps << " steps, every " << every << ", keep " << keep << ", keep_every " << keep_every);
          CHECK(kept <= most);
          CHECK(most <= kept + (keep_every == 0 ? 0 : keep));
        }
}
