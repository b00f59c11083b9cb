#include "core/data/loader.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>
#include <thread>

#include <c10/util/ParallelGuard.h>

#include <ditto/random.h>
#include <ditto/text.h>

#include "core/data/batch_job.h"
#include "core/data/blend.h"

namespace ditto {

namespace {

constexpr size_t kMessagesKept = 10;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

void LoaderOptions::read(OptionReader& option) {
  option("threads", threads, "threads that read and decode; 0: the training thread does, when a batch is asked for")
      .between(0, 256)
      .changes(Effect::nothing);
  option("prefetch", prefetch, "micro-batches read ahead").between(1, 1024).changes(Effect::nothing);
  option("max_bad", max_bad, "samples that may fail to decode; one more ends the run")
      .at_least(0)
      .changes(Effect::nothing);
  option("strict", strict, "end the run at the first sample that does not decode, and at a damaged shard")
      .changes(Effect::nothing);
  option("shuffle", shuffle, "a new order every epoch; false: as stored");
  option("flip", flip, "mirror every other picture left to right, by sample id");
}

LoaderOptions validation_options(LoaderOptions training) {
  training.shuffle = training.flip = false;
  return training;
}

struct Loader::State {
  State(std::shared_ptr<const Source> from, const LoaderOptions& given, uint64_t seed, Log to)
      : source(std::move(from)),
        options(given),
        order(ordered(*source), seed, given.shuffle ? Shuffle::on : Shuffle::off),
        random(seed),
        log(std::move(to)) {}

  struct Entry {
    std::shared_ptr<BatchJob> job;
    bool done = false;
  };

  std::shared_ptr<BatchJob> make_job(Places places) const;
  void work(const std::stop_token& stop);
  void refill();
  std::shared_ptr<BatchJob> fetch(Places places);
  void tell_bad(const BatchJob& job);

  std::shared_ptr<const Source> source;
  LoaderOptions options;
  Order order;
  Random random;
  Log log;

  Upcoming upcoming;
  int64_t asked = 0;  // requests of `upcoming` that were queued

  std::mutex mutex;
  std::condition_variable_any work_there, job_done;
  std::deque<std::shared_ptr<Entry>> queue;  // in the order in which they will be asked for

  double waited = 0;
  std::set<int64_t> bad, left_out;  // indices in the source: not decoded here; anywhere
  std::vector<std::string> messages;

  std::vector<std::jthread> threads;  // last: stopped and joined before the rest goes
};

std::shared_ptr<BatchJob> Loader::State::make_job(Places places) const {
  if (places.list.empty() || *std::min_element(places.list.begin(), places.list.end()) < 0)
    throw std::logic_error("Loader: " + std::to_string(places.count()) + " places, or one below zero");
  std::vector<bool> flips;
  if (options.flip) {
    const auto drawn = random.uniform(Purpose::augmentation, places.list, {1});
    for (int64_t i = 0; i < places.count(); ++i) flips.push_back(drawn.const_data_ptr<double>()[i] < 0.5);
  }
  return std::make_shared<BatchJob>(*source, order, std::move(places), std::move(flips));
}

// One sample at a time from the oldest unfinished request: the next batch to be asked for is done first.
void Loader::State::work(const std::stop_token& stop) {
  const c10::ParallelGuard one_thread(true);  // operators called while decoding must not start threads of their own
  std::unique_lock lock(mutex);
  for (;;) {
    std::shared_ptr<Entry> entry;
    const auto find = [&] {
      for (const auto& one : queue)
        if (!one->job->all_taken()) return entry = one, true;
      return false;
    };
    work_there.wait(lock, stop, find);
    if (stop.stop_requested()) return;
    const int64_t row = entry->job->take();
    lock.unlock();
    entry->job->read(row);
    lock.lock();
    if (entry->job->finish_row()) {
      entry->done = true;
      job_done.notify_all();
    }
  }
}

void Loader::State::refill() {
  while (upcoming && queue.size() < static_cast<size_t>(options.prefetch)) {
    const auto places = upcoming(asked);
    if (!places) {
      upcoming = nullptr;
      return;
    }
    auto entry = std::make_shared<Entry>(Entry{make_job(*places), false});
    {
      const std::lock_guard lock(mutex);
      queue.push_back(std::move(entry));
    }
    ++asked;
    work_there.notify_all();
  }
}

// The job for these places, finished. What was read ahead for requests that were passed over is dropped.
std::shared_ptr<BatchJob> Loader::State::fetch(Places places) {
  std::unique_lock lock(mutex);
  const auto wanted = [&](const auto& entry) { return entry->job->places() == places; };
  const auto found = std::find_if(queue.begin(), queue.end(), wanted);
  if (found != queue.end()) {
    queue.erase(queue.begin(), found);
  } else {
    queue.push_front(std::make_shared<Entry>(Entry{make_job(places), false}));
    work_there.notify_all();
  }
  const auto entry = queue.front();
  job_done.wait(lock, [&] { return entry->done; });
  queue.pop_front();
  return entry->job;
}

void Loader::State::tell_bad(const BatchJob& job) {
  for (const auto& sample : job.bad()) {
    if (!bad.insert(sample.index).second) continue;
    if (options.strict) throw sample.error;
    if (messages.size() < kMessagesKept) messages.emplace_back(sample.error.what());
    if (log && messages.size() == bad.size()) log(std::string("sample left out: ") + sample.error.what());
  }
}

Loader::Loader(std::shared_ptr<const Source> source, const LoaderOptions& options, uint64_t seed, Log log)
    : state_(std::make_unique<State>(std::move(source), options, seed, std::move(log))) {
  State& state = *state_;
  for (const auto& warning : state.source->warnings()) {
    if (options.strict)
      throw Error(ErrorKind::data, "loader", warning, "repair the data, or set loader.strict = false to do without it");
    if (state.log) state.log(shown(warning, kSentenceShown));
  }
  for (int64_t i = 0; i < options.threads; ++i)
    state.threads.emplace_back([&state](const std::stop_token& stop) { state.work(stop); });
}

Loader::~Loader() = default;

void Loader::expect(Upcoming upcoming) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->queue.clear();
  }
  state_->upcoming = state_->options.threads > 0 ? std::move(upcoming) : nullptr;
  state_->asked = 0;
  state_->refill();
}

std::shared_ptr<BatchJob> Loader::read(Places places) {
  const auto start = std::chrono::steady_clock::now();
  std::shared_ptr<BatchJob> job;
  if (state_->options.threads > 0) {
    job = state_->fetch(places);
  } else {
    job = state_->make_job(places);
    for (int64_t row = 0; row < places.count(); ++row) job->read(row);
  }
  state_->tell_bad(*job);
  state_->waited += seconds_since(start);
  state_->refill();
  return job;
}

void Loader::leave_out(const std::vector<int64_t>& places,
                       const std::function<std::string(const std::string&)>& first_of) {
  for (const int64_t place : places) state_->left_out.insert(state_->order.index(place));
  const auto count = static_cast<int64_t>(state_->left_out.size());
  if (count <= state_->options.max_bad) return;
  throw Error(ErrorKind::data, "loader",
              std::to_string(count) + " samples could not be decoded, loader.max_bad is " +
                  std::to_string(state_->options.max_bad) +
                  "; the first: " + first_of(state_->messages.empty() ? "" : state_->messages.front()),
              "repair the data (`ditto data verify` lists every bad sample) or raise loader.max_bad");
}

Batch Loader::next(Places places) {
  const auto job = read(places);
  std::vector<int64_t> bad;
  for (const auto& sample : job->bad()) bad.push_back(sample.place);
  leave_out(bad, [](const std::string& mine) { return mine; });
  return job->result();
}

std::vector<int64_t> Loader::size_of(int64_t place) const {
  return own_sides(*state_->source, state_->source->makes(), state_->order.index(place));
}

int64_t Loader::number_of(int64_t place) const { return state_->order.index(place); }

double Loader::waited_s() const { return state_->waited; }

}  // namespace ditto
