// From a source and an order to micro-batches, read ahead in background threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ditto/batch.h>
#include <ditto/data.h>

#include "core/config/data_options.h"
#include "core/data/order.h"
#include "core/data/places.h"

namespace ditto {

class BatchJob;

// What a source's pictures are mirrored with: throws Error(config) for a tensor that may show the same as "image", and
// does not say whether it turns with it.
void require_known_turns(const Source& source);

// A loader's position is the number of the next place, which its caller keeps: to be saved are only the samples that
// were left out. What next() returns depends on the places, the source and the seed alone, never on threads, read-ahead
// or what was asked before.
//
// A sample that cannot be decoded (Error(data) of the source) keeps its place: zeros, weight 0. The first ten different
// ones are logged by name; with `strict` the first ends the run, and otherwise more than `max_bad` that the run leaves
// out, in this process or before it went on.
class Loader {
 public:
  using Log = std::function<void(const std::string&)>;

  // Data that does not come for `stall_s` seconds is said: which thread waits for what. `log` is then called from
  // another thread, while read() waits.
  //
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

  // All samples of these places, read: those that could not be decoded here are known, and the batch is its result().
  // Throws what reading threw, as it came; of Error(data), with `strict`, the first. Not thread-safe.
  std::shared_ptr<BatchJob> read(Places places);
  // The run does without these: some rank could not decode them. To be told alike on all ranks. Throws Error(data) when
  // there are more than `max_bad` different ones; `first_of` then gives, for what this rank's first one said (empty: it
  // decoded all), what the run's first one said.
  void leave_out(const std::vector<int64_t>& places, const std::function<std::string(const std::string&)>& first_of);
  // By their numbers in the source.
  const std::set<int64_t>& left_out() const;
  void had_left_out(const std::set<int64_t>& numbers);  // before: they count too
  // read, leave_out and result, for one rank by itself. The tensors of the source's spec, samples along dim 0, in parts
  // where their sizes differ. Texts ([-1]) are padded with zeros to the longest of the part.
  Batch next(Places places);

  // Of the sample at a place, without reading it; empty where the source's samples have one size.
  std::vector<int64_t> size_of(int64_t place) const;

  // In the source, of the sample at a place.
  int64_t number_of(int64_t place) const;

  double waited_s() const;  // seconds next() has waited for data, since the start

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Whether training waits for its data, and what helps: looks at stretches of at least ten steps and ten seconds, the
// first step of a process left out, and says it once.
class DataWait {
 public:
  DataWait(int64_t loader_threads, int64_t processors) : threads_(loader_threads), processors_(processors) {}
  // Of one step: seconds it waited for data, and seconds it took. The line to be said; empty: none.
  std::string add(double waited_s, double step_s);

 private:
  int64_t threads_, processors_;
  int64_t steps_ = -1;
  double waited_ = 0, took_ = 0;
  bool said_ = false;
};

// The held-out part: in its own order, without flips.
LoaderOptions validation_options(LoaderOptions training);

}  // namespace ditto
