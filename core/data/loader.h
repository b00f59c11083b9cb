// From a source and an order to micro-batches, read ahead in background threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ditto/batch.h>
#include <ditto/data.h>

#include "core/data/order.h"

namespace ditto {

// Section [loader] of a recipe.
struct LoaderOptions {
  int64_t threads = 2;
  int64_t prefetch = 4;
  int64_t max_bad = 16;
  bool strict = false;
  bool shuffle = true;
  bool flip = false;
  void read(OptionReader& option);
};

// Samples [first, first + count) of the run's global order.
struct Places {
  int64_t first = 0;
  int64_t count = 0;
  bool operator==(const Places&) const = default;
};

// A loader's position is the number of the next place, which its caller keeps: there is nothing to save. What next()
// returns depends on the places, the source and the seed alone, never on threads, read-ahead or what was asked before.
//
// A sample that cannot be decoded (Error(data) of the source) keeps its place: zeros, weight 0. Different ones are
// counted, the first ten logged by name; more than `max_bad` end the run, and with `strict` the first does. The count
// starts anew with a process.
class Loader {
 public:
  using Log = std::function<void(const std::string&)>;

  // `seed` is the run's: it decides order and flips. Logs the source's warnings; throws them as Error(data) with
  // `strict`.
  Loader(std::shared_ptr<const Source> source, const LoaderOptions& options, uint64_t seed, Log log);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // What will be asked for: the k-th request from now on, k = 0, 1, …; nothing: no more. Up to `prefetch` requests are
  // read ahead. Called from next() only. A request that comes otherwise is answered all the same, only later.
  using Upcoming = std::function<std::optional<Places>(int64_t k)>;
  void expect(Upcoming upcoming);

  // The tensors of the source's spec, samples along dim 0. Texts ([-1]) are padded with zeros to the longest of the
  // batch. Throws what reading threw: Error(data) for too many bad samples; anything else as it came. Not thread-safe.
  Batch next(Places places);

  double waited_s() const;  // seconds next() has waited for data, since the start

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The held-out part: in its own order, without flips.
LoaderOptions validation_options(LoaderOptions training);

}  // namespace ditto
