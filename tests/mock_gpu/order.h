// Who has seen what. Streams of a GPU run beside one another and beside the host; what one has done is another's to use
// once that one has waited for it. The mock computes at once what is launched, holds back what the host may not have
// yet, and asks here whether whoever uses a piece of memory has waited for those that used it before: so a missing wait
// is seen in every run, and not in those where some thread happens to be late. No LibTorch here.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ditto/error.h>

namespace mock_gpu {

using StreamId = std::int64_t;  // of all GPUs: GPU * kStreams + the stream's number there, 0 for the default one
inline constexpr StreamId kStreams = 1000;

inline std::string name(StreamId stream) {
  return "stream " + std::to_string(stream % kStreams) + " of GPU " + std::to_string(stream / kStreams);
}

// A stream's launch number `tick`, from 1.
struct Moment {
  StreamId stream = 0;
  std::uint64_t tick = 0;
};

// How far somebody has seen each stream.
class Clock {
 public:
  bool has(const Moment& moment) const {
    const auto found = ticks_.find(moment.stream);
    return found != ticks_.end() && found->second >= moment.tick;
  }
  void join(const Clock& other) {
    for (const auto& [stream, tick] : other.ticks_) ticks_[stream] = std::max(ticks_[stream], tick);
  }
  Moment tick(StreamId stream) { return {stream, ++ticks_[stream]}; }

 private:
  std::map<StreamId, std::uint64_t> ticks_;
};

// Bytes [begin, end) of a piece of memory, read or written.
struct Range {
  std::size_t begin = 0, end = 0;
  bool writes = false;
};

// What was done with a piece of memory, as far as somebody may still run into it.
class Uses {
 public:
  struct Use {
    Range range;
    Moment moment;
  };
  // One that somebody who has seen so much would run into: where one of the two writes. Null: none.
  const Use* in_the_way(const Range& range, const Clock& seen) const {
    const auto found = std::find_if(uses_.begin(), uses_.end(), [&](const Use& use) {
      return (range.writes || use.range.writes) && use.range.begin < range.end && range.begin < use.range.end &&
             !seen.has(use.moment);
    });
    return found == uses_.end() ? nullptr : &*found;
  }
  // Those of other streams than `home` and `known`.
  std::vector<Moment> of_others(StreamId home, const std::set<StreamId>& known) const {
    std::vector<Moment> moments;
    for (const auto& use : uses_)
      if (use.moment.stream != home && known.count(use.moment.stream) == 0) moments.push_back(use.moment);
    return moments;
  }
  // Whatever the host has seen comes before all that is launched from now on, and an equal use of a stream before this
  // one.
  void add(const Range& range, const Moment& moment, const Clock& host) {
    std::erase_if(uses_, [&](const Use& use) {
      return host.has(use.moment) || (use.moment.stream == moment.stream && use.range.begin == range.begin &&
                                      use.range.end == range.end && use.range.writes == range.writes);
    });
    uses_.push_back({range, moment});
  }

 private:
  std::vector<Use> uses_;
};

struct Access {
  Uses* of = nullptr;
  Range range;
};

// Of all streams and the host, whose threads count as one: what orders them is C++'s. All methods may be called from
// any thread.
class Order {
 public:
  // A launch: the stream's next moment. Throws Error(plugin) where a piece of memory was used by a stream that this one
  // has not waited for.
  Moment launch(StreamId stream, std::span<const Access> accesses, const std::string& what) {
    const std::lock_guard lock(mutex_);
    auto& seen = seen_by(stream);
    for (const auto& access : accesses)
      if (const auto* use = access.of->in_the_way(access.range, seen))
        throw ditto::Error(ditto::ErrorKind::plugin, "mock_gpu",
                           what + (access.range.writes ? " writes" : " reads") + " in " + name(stream) +
                               " memory that " + name(use->moment.stream) + (use->range.writes ? " wrote" : " reads") +
                               ", and has not waited for it",
                           "record an event there, after that, and block this stream on it");
    const auto moment = seen.tick(stream);
    for (const auto& access : accesses) access.of->add(access.range, moment, host_);
    return moment;
  }
  // What a launch made, known only when it was done.
  void add(const Moment& moment, const Access& access) {
    const std::lock_guard lock(mutex_);
    access.of->add(access.range, moment, host_);
  }

  // What an event that is recorded now stands for.
  Clock now(StreamId stream) {
    const std::lock_guard lock(mutex_);
    return seen_by(stream);
  }
  Clock now_of_gpu(StreamId gpu) {
    const std::lock_guard lock(mutex_);
    Clock all;
    for (const auto& [stream, clock] : streams_)
      if (stream / kStreams == gpu) all.join(clock);
    return all;
  }
  void wait(StreamId stream, const Clock& event) {
    const std::lock_guard lock(mutex_);
    seen_by(stream).join(event);
  }

  // The host has waited: what was held back until then is done.
  void host_waits(const Clock& event) {
    const std::lock_guard lock(mutex_);
    host_.join(event);
    do_held_back([&](const HeldBack& one) { return host_.has(one.moment); });
  }
  // `work` makes true in the host's memory at `where`, once it has waited for the moment, what a launch did there.
  void hold_back(const Moment& moment, const void* where, std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    held_back_.push_back({moment, where, std::move(work)});
  }
  // For a launch that uses the host's memory there: what its stream has seen is done.
  void hasten(StreamId stream, const void* where) {
    const std::lock_guard lock(mutex_);
    const auto& seen = seen_by(stream);
    do_held_back([&](const HeldBack& one) { return one.where == where && seen.has(one.moment); });
  }

  // Memory that was made in the stream `home` is given back; `known` are streams that are known to use it. A GPU's
  // allocator hands it out again to whoever asks next in that stream.
  void free(const Uses& uses, StreamId home, const std::set<StreamId>& known) {
    const std::lock_guard lock(mutex_);
    auto& freed = freed_[home];
    const auto more = uses.of_others(home, known);
    freed.insert(freed.end(), more.begin(), more.end());
  }
  // Memory is asked for in a stream. Throws Error(plugin) where it might be such that another stream still uses.
  void allocate(StreamId stream) {
    const std::lock_guard lock(mutex_);
    auto& freed = freed_[stream];
    if (freed.empty()) return;
    const auto& seen = seen_by(stream);
    std::erase_if(freed, [&](const Moment& moment) { return seen.has(moment); });
    if (freed.empty()) return;
    const auto user = freed.front().stream;
    freed.clear();
    throw ditto::Error(
        ditto::ErrorKind::plugin, "mock_gpu",
        "memory that was freed in " + name(stream) + " is handed out again, and " + name(user) + " may still use it",
        "call record_stream before it is freed, or let the one stream wait for the other");
  }

 private:
  // The host launches: what it has seen comes before.
  Clock& seen_by(StreamId stream) {
    auto& clock = streams_[stream];
    clock.join(host_);
    return clock;
  }
  struct HeldBack {
    Moment moment;
    const void* where;
    std::function<void()> work;
  };
  template <class IsDue>
  void do_held_back(const IsDue& is_due) {
    std::vector<HeldBack> due, rest;
    for (auto& one : held_back_) (is_due(one) ? due : rest).push_back(std::move(one));
    held_back_ = std::move(rest);
    for (const auto& one : due) one.work();
  }

  std::mutex mutex_;
  Clock host_;
  std::map<StreamId, Clock> streams_;
  std::map<StreamId, std::vector<Moment>> freed_;  // who else used what was freed in a stream
  std::vector<HeldBack> held_back_;
};

}  // namespace mock_gpu
