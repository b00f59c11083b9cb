#include "core/ranks/watch.h"

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>

#include <ditto/parallel/waiting.h>
#include <ditto/text.h>

#include "core/ranks/error_file.h"
#include "core/ranks/rank_status.h"
#include "core/ranks/stillness.h"

namespace ditto {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kLostAPeer = 6;
constexpr milliseconds kLongest{4000};   // from a failure to the end of the process
constexpr milliseconds kMeeting{10000};  // of ranks that fail before they have met
constexpr milliseconds kSilence{1500};   // of a process that is gone, though it posts several times in it

std::string seconds(milliseconds time) {
  const auto tenths = time.count() / 100;
  return std::to_string(tenths / 10) + (tenths % 10 ? "." + std::to_string(tenths % 10) : "") + " s";
}

}  // namespace

class RankWatch::Impl {
 public:
  // `store`: to be kept as long as this, where no mesh does so.
  Impl(const RankInfo& rank, const WatchOptions& options, c10::intrusive_ptr<c10d::Store> store = {})
      : rank_(rank),
        options_(options),
        interval_(rank.world_size > 256 ? 500 : 250),
        store_(std::move(store)),
        status_(rank, options.timeout) {}

  void start() {
    // A lost peer has closed sockets that this rank writes to: an error to be told, not the end of the process.
    std::signal(SIGPIPE, SIG_IGN);
    try {  // before the others can come to wait for this rank: one that has not been heard of is not missed
      status_.post(own_heartbeat());
    } catch (const std::exception&) {  // the talker finds that, too, and ends the process
    }
    talker_ = std::jthread([this](std::stop_token stop) { talk(stop); });
    if (options_.hang.count() > 0) clock_ = std::jthread([this](std::stop_token stop) { watch_the_store(stop); });
  }

  void begin(Heartbeat::State state, const char* what) {
    state_ = state == Heartbeat::step && !stepped_.exchange(true) ? Heartbeat::busy : state;
    doing_ = what;
    ++progress_;
  }

  void goes_on(const char* what) {
    doing_ = what;
    ++progress_;
  }

  int fail(const Error& error) {
    if (ending_.exchange(true)) std::this_thread::sleep_for(2 * kLongest);  // the watch ends the process, and said why
    // What a plugin's own use of a transport throws is a plugin's error: it may be that a peer was lost.
    const bool talks = error.kind() == ErrorKind::distributed || error.kind() == ErrorKind::plugin;
    const bool stranded = talks && talker_.joinable();  // else it has not met any
    blames_others_ = error.kind() == ErrorKind::distributed;
    end_soon(error.exit_code(), error.what());
    int code = error.exit_code();
    try {
      if (!stranded || !find_the_lost(error))
        say_own(error.what());
      else
        code = kLostAPeer;
    } catch (const std::exception&) {
      lose_the_store(store_is_gone());
      code = kLostAPeer;
    }
    wait_for_others();
    return code;
  }

  void finish() {
    if (ending_.exchange(true)) std::this_thread::sleep_for(2 * kLongest);
    stop();
    try {
      status_.post({++beat_, ++progress_, Heartbeat::done, "done"});
      status_.leave();
      Stillness stillness(4 * interval_);
      for (auto signs = signs_of_the_living(); hosts() && !signs.empty(); signs = signs_of_the_living()) {
        if (stillness.of(signs) > 2 * kSilence) break;  // they are gone
        std::this_thread::sleep_for(milliseconds(20));
      }
    } catch (const std::exception&) {  // the host of the store was done before: so is this rank
    }
  }

 private:
  std::string signs_of_the_living() {
    std::string all;
    for (int r = 0; r < rank_.world_size; ++r)
      if (const auto heartbeat = status_.heartbeat_of(r); heartbeat && heartbeat->state != Heartbeat::done)
        all += std::to_string(heartbeat->beat) + " ";
    return all;
  }

  bool hosts() const { return rank_.rank == 0 && !rank_.store_is_launchers; }

  void stop() {
    talker_.request_stop();
    clock_.request_stop();
    wake_.notify_all();
    if (talker_.joinable()) talker_.join();
    if (clock_.joinable()) clock_.join();
  }

  void pause(const std::stop_token& stop, milliseconds time) {
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, stop, time, [] { return false; });
  }

  // --- the thread that talks ---

  void talk(const std::stop_token& stop) {
    try {
      while (!stop.stop_requested()) {
        round();
        ++rounds_;
        pause(stop, interval_);
      }
    } catch (const std::exception&) {
      if (stop.stop_requested()) return;
      lose_the_store(store_is_gone());
      end_because(store_is_gone());
    }
  }

  void round() {
    status_.post(own_heartbeat());
    if (const auto failure = status_.failure()) {
      settle(*failure);
      return end_because(*failure);
    }
    if (stranded_ && !given_up_) return look_at_all();
    if (options_.hang.count() > 0) look_at_next();
  }

  Heartbeat own_heartbeat() {
    auto& calls = peer_calls();
    Heartbeat heartbeat{++beat_, progress_ + calls.done, state_, doing_.load()};
    if (calls.waiting()) heartbeat.state = Heartbeat::waiting;
    if (stranded_) heartbeat.state = Heartbeat::stranded;
    return heartbeat;
  }

  // The next rank in a ring: each is watched by one.
  void look_at_next() {
    const int next = (rank_.rank + 1) % rank_.world_size;
    const auto heartbeat = status_.heartbeat_of(next);
    if (!heartbeat || heartbeat->state == Heartbeat::done) return;
    if (silence_.of(std::to_string(heartbeat->beat)) > options_.hang)
      return pass({next, RankFailure::lost, "no heartbeat for " + seconds(options_.hang)});
    const bool limited = heartbeat->state == Heartbeat::step;
    const auto now = limited ? std::to_string(heartbeat->progress) : std::to_string(heartbeat->beat) + " has no limit";
    if (stillness_.of(now) > options_.hang)
      pass({next, RankFailure::hangs,
            "it stands still in " + heartbeat->doing + others_that_stand_still(next) +
                " for longer than parallel.hang_s = " + seconds(options_.hang)});
  }

  // Where a transport waits out of sight, those that wait look like the one that hangs.
  std::string others_that_stand_still(int but) {
    std::string list;
    for (int r = 0; r < rank_.world_size; ++r) {
      if (r == but || r == rank_.rank) continue;
      const auto heartbeat = status_.heartbeat_of(r);
      if (heartbeat && heartbeat->state == Heartbeat::step) list += (list.empty() ? "" : ", ") + std::to_string(r);
    }
    return list.empty() ? "" : ", and so may rank " + list + ",";
  }

  // A call to a peer has failed here: who is silent, or alive and not where the others are?
  void look_at_all() {
    std::optional<RankFailure> absent, hangs;
    for (int r = 0; r < rank_.world_size; ++r) {
      if (r == rank_.rank) continue;
      const auto heartbeat = status_.heartbeat_of(r);
      auto& first = first_heartbeats_.try_emplace(r, heartbeat).first->second;
      if (!heartbeat) {
        if (!absent) absent = RankFailure{r, RankFailure::lost, "it never came"};
      } else if (heartbeat->state != Heartbeat::done && heartbeat->beat == first->beat) {
        if (!absent)
          absent = RankFailure{r, RankFailure::lost, "its process gives no heartbeat; it was in " + heartbeat->doing};
      } else if (heartbeat->progress == first->progress && heartbeat->state != Heartbeat::stranded &&
                 heartbeat->state != Heartbeat::waiting && heartbeat->state != Heartbeat::done && !hangs) {
        hangs = RankFailure{r, RankFailure::hangs, "it lives, but does not answer: it is in " + heartbeat->doing};
      }
    }
    if (++looks_ * interval_ <= kSilence) return;
    if (absent) return pass(*absent);
    if (hangs && blames_others_) return pass(*hangs);
    given_up_ = true;
    wake_.notify_all();
  }

  void pass(const RankFailure& failure) {
    const auto first = status_.claim(failure);
    if (first.by == rank_.rank) say_first(first);
    settle(first);
    end_because(first);
  }

  // --- the thread that watches the first: a host of the store that was stopped leaves it waiting ---

  void watch_the_store(const std::stop_token& stop) {
    Stillness stillness(4 * interval_);
    while (!stop.stop_requested()) {
      if (stillness.of(std::to_string(rounds_)) > options_.hang + 4 * interval_) end_without_store();
      pause(stop, interval_);
    }
  }

  std::string place() const { return rank_.master_address + ":" + std::to_string(rank_.master_port); }

  RankFailure store_is_gone() const {
    return {0, RankFailure::lost,
            rank_.store_is_launchers ? "the launcher's store at " + place() + " is gone"
                                     : "the store that it hosts, at " + place() + ", is gone"};
  }

  // --- ending ---

  // The training thread is told, and has a moment to fail by itself.
  bool settle(const RankFailure& failure) {  // whether it is news
    const std::lock_guard lock(mutex_);
    if (failure_) return false;
    failure_ = failure;
    wake_.notify_all();
    return true;
  }

  // Called by the watch's threads; does not return unless the training thread is ending the process.
  void end_because(const RankFailure& failure) {
    settle(failure);
    if (!stranded_ && !ending_) std::this_thread::sleep_for(2 * interval_);
    if (ending_.exchange(true)) return;
    say_because(failure);
    wait_for_others();
    std::fflush(nullptr);
    ::_exit(kLostAPeer);
  }

  void end_without_store() {
    if (ending_.exchange(true)) return;
    lose_the_store({0, RankFailure::hangs, "the store at " + place() + " does not answer"});
    std::fflush(nullptr);
    ::_exit(kLostAPeer);
  }

  // Whatever the rest of the program waits for.
  void end_soon(int code, const std::string& what) {
    std::thread([this, code, what, rank = rank_.rank] {
      std::this_thread::sleep_for(kLongest);
      if (!said_) std::fprintf(stderr, "error: rank %d: %s\n", rank, shown(what, kSentenceShown).c_str());
      std::fflush(nullptr);
      ::_exit(code);
    }).detach();
  }

  void say_own(const std::string& what) {
    const RankFailure mine{rank_.rank, RankFailure::failed, what};
    const auto first = status_.claim(mine);
    settle(first);
    if (first.by == rank_.rank) return say_first(first);
    if (first.text == what) {  // what all ranks found alike was said by the first of them
      said_ = true;
      return write_error_file(what);
    }
    say("rank " + std::to_string(rank_.rank) + " failed, after " + to_text(first) + ": " + what, what);
  }

  // False if nobody can be blamed. What this rank says of itself then is not lost: it may be the cause.
  bool find_the_lost(const Error& error) {
    const std::string what = error.what();
    stranded_ = true;
    std::unique_lock lock(mutex_);
    const bool heard = wake_.wait_for(lock, kLongest - milliseconds(500), [this] { return failure_ || given_up_; });
    if (heard && !failure_) return false;
    const auto failure =
        failure_.value_or(RankFailure{0, RankFailure::hangs, "the store at " + place() + " does not answer"});
    lock.unlock();
    if (failure.text == what && failure.kind == RankFailure::failed) return false;
    const bool is_consequence = blames_others_ && failure.kind != RankFailure::hangs;
    say_because(failure, is_consequence ? "" : "; its own error: " + what);
    return true;
  }

  // Nothing can be written down any more: each says it by itself, and one of them for all.
  void lose_the_store(const RankFailure& failure) {
    if (!settle(failure)) return;
    if (rank_.rank == (rank_.store_is_launchers ? 0 : 1)) say_first(failure);
    say_because(failure);
  }

  // By the one rank that wrote the failure down. `--local-ranks` itself says which process died, and of what.
  void say_first(const RankFailure& failure) {
    const bool seen_by_parent = rank_.launcher == "local ranks" && failure.kind == RankFailure::lost;
    const bool own = failure.rank == rank_.rank && failure.kind == RankFailure::failed;
    const auto what =
        own ? "rank " + std::to_string(failure.rank) + ": " + failure.text : to_text(failure) + ": " + failure.text;
    if (!seen_by_parent) std::fprintf(stderr, "error: %s\n", shown(what, kSentenceShown).c_str());
    if (own) {
      said_ = true;
      write_error_file(what);
    }
  }

  void say_because(const RankFailure& failure, const std::string& own = "") {
    say("rank " + std::to_string(rank_.rank) + " ends because " + to_text(failure) + own,
        to_text(failure) + ": " + failure.text);
  }

  void say(const std::string& line, const std::string& file) {
    if (said_.exchange(true)) return;
    std::fprintf(stderr, "%s\n", shown(line, kSentenceShown).c_str());
    write_error_file(file);
  }

  // The store lives as long as its host: the others read the failure first.
  void wait_for_others() {
    try {
      status_.leave();
      std::optional<RankFailure> failure;
      {
        const std::lock_guard lock(mutex_);
        failure = failure_;
      }
      const bool one_is_gone = failure && failure->rank != rank_.rank && failure->kind == RankFailure::lost;
      const auto until = Clock::now() + 6 * interval_;
      while (hosts() && status_.have_left() < rank_.world_size - (one_is_gone ? 1 : 0) && Clock::now() < until)
        std::this_thread::sleep_for(milliseconds(20));
    } catch (const std::exception&) {  // gone already
    }
  }

  const RankInfo rank_;
  const WatchOptions options_;
  const milliseconds interval_;
  const c10::intrusive_ptr<c10d::Store> store_;
  RankStatus status_;
  std::atomic<int64_t> progress_{0}, rounds_{0}, beat_{0};
  std::atomic<Heartbeat::State> state_{Heartbeat::busy};
  std::atomic<const char*> doing_{"its start"};
  std::atomic<bool> stepped_{false}, stranded_{false}, blames_others_{false}, given_up_{false}, ending_{false},
      said_{false};
  Stillness silence_{4 * interval_}, stillness_{4 * interval_};  // these and below: of the talker
  std::map<int, std::optional<Heartbeat>> first_heartbeats_;
  int looks_ = 0;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::optional<RankFailure> failure_;
  std::jthread talker_, clock_;  // last: they use the rest
};

RankWatch::RankWatch(const RankInfo& rank) : rank_(rank) {}
RankWatch::~RankWatch() = default;

void RankWatch::start(const WatchOptions& options) {
  if (rank_.world_size == 1) return;
  impl_ = std::make_unique<Impl>(rank_, options);
  impl_->start();
}
void RankWatch::begin_step() {
  if (impl_) impl_->begin(Heartbeat::step, "a step");
}
void RankWatch::begin(const char* what) {
  if (impl_) impl_->begin(Heartbeat::busy, what);
}
void RankWatch::goes_on(const char* what) {
  if (impl_) impl_->goes_on(what);
}
int RankWatch::fail(const Error& error) {
  if (rank_.world_size == 1) throw error;
  try {
    if (!impl_) impl_ = std::make_unique<Impl>(rank_, WatchOptions{kMeeting}, connect_to_store(rank_, kMeeting));
  } catch (const Error&) {  // nobody is there to be told
    const auto what = "rank " + std::to_string(rank_.rank) + ": " + error.what();
    std::fprintf(stderr, "error: %s\n", what.c_str());
    write_error_file(what);
    return error.exit_code();
  }
  return impl_->fail(error);
}
void RankWatch::finish() {
  if (impl_) impl_->finish();
}

}  // namespace ditto
