#include "core/data/loader.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include <c10/util/ParallelGuard.h>
#include <fmt/format.h>

#include <ditto/math/random.h>
#include <ditto/text.h>

#include "core/data/batch_job.h"
#include "core/data/blend.h"
#include "core/data/encoded_set.h"
#include "core/data/names.h"
#include "core/measure/freed_memory.h"

namespace ditto {

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMessagesKept = 10;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

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
  void begin_to_read();
  // What a thread does: it reads sample `index` of the source since then.
  struct Doing {
    int64_t index = -1;  // nothing
    Clock::time_point since;
  };

  void work(const std::stop_token& stop, size_t thread);
  void watch(const std::stop_token& stop);
  std::string who_waits(double seconds) const;
  void refill();
  std::shared_ptr<BatchJob> fetch(Places places);
  void read_here(BatchJob& job, int64_t row);
  void tell_bad(const BatchJob& job);

  std::shared_ptr<const Source> source;
  LoaderOptions options;
  Order order;
  Random random;
  Log log;

  Upcoming upcoming;
  int64_t asked = 0;  // requests of `upcoming` that were queued
  bool reads = false;

  std::mutex mutex;
  std::condition_variable_any work_there, job_done;
  std::deque<std::shared_ptr<Entry>> queue;  // in the order in which they will be asked for

  std::vector<Doing> threads_do;                 // of the loader's threads; without any, of the training thread
  std::optional<Clock::time_point> waits_since;  // the training thread, for data

  double waited = 0;
  std::set<int64_t> bad, left_out;  // indices in the source: not decoded here; anywhere, and before
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
void Loader::State::work(const std::stop_token& stop, size_t thread) {
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
    threads_do[thread] = {order.index(entry->job->places().list[static_cast<size_t>(row)]), Clock::now()};
    lock.unlock();
    entry->job->read(row);
    lock.lock();
    threads_do[thread] = {};
    if (entry->job->finish_row()) {
      entry->done = true;
      job_done.notify_all();
    }
  }
}

// Looks from time to time, so that nobody has to wake it.
void Loader::State::watch(const std::stop_token& stop) {
  std::unique_lock lock(mutex);
  std::condition_variable_any never;
  std::optional<Clock::time_point> said_of;
  double next = options.stall_s;
  for (;;) {
    never.wait_for(lock, stop, std::chrono::duration<double>(options.stall_s / 4), [] { return false; });
    if (stop.stop_requested()) return;
    if (waits_since != said_of) next = options.stall_s;
    said_of = waits_since;
    if (!waits_since || seconds_since(*waits_since) < next) continue;
    log(who_waits(seconds_since(*waits_since)));  // the lock is kept, so that read() returns no sooner
    next *= 2;
  }
}

std::string Loader::State::who_waits(double seconds) const {
  const auto text = [](double s) {
    char digits[32];
    std::snprintf(digits, sizeof digits, "%.3g s", s);
    return std::string(digits);
  };
  std::string line = "no data for " + text(seconds) + ": ";
  for (size_t thread = 0; thread < threads_do.size(); ++thread) {
    const auto& doing = threads_do[thread];
    line += options.threads == 0 ? "the training thread" : "loader thread " + std::to_string(thread);
    line += doing.index < 0 ? " has nothing to read"
                            : " reads the data's sample " + std::to_string(doing.index) + " for " +
                                  text(seconds_since(doing.since));
    line += thread + 1 < threads_do.size() ? ", " : "";
  }
  return line + (options.threads == 0 ? "" : ", and the training thread waits") +
         "; is the disk or the store that holds it at work?";
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
  waits_since = Clock::now();
  job_done.wait(lock, [&] { return entry->done; });
  waits_since.reset();
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

namespace {

// Whether a tensor may be another picture of what `image` shows: it has its sides, or its proportions.
bool may_show_the_same(const TensorSpec& spec, const TensorSpec& image) {
  if (spec.shape.size() < 2) return false;
  const int64_t height = spec.shape.end()[-2], width = spec.shape.end()[-1];
  const int64_t of_image = image.shape.end()[-2], wide = image.shape.end()[-1];
  if (height == of_image && width == wide) return true;
  return std::min({height, width, of_image, wide}) > 0 && height * wide == width * of_image;
}

}  // namespace

// Mirrored or not, one that does not say whether it turns with the picture would be wrong.
void require_known_turns(const Source& source) {
  const auto specs = source.makes();
  const auto* image = find(specs, names::kImage);
  if (!image || image->shape.size() < 2) return;
  for (const auto& spec : specs)
    if (&spec != image && !spec.turns_with_image && may_show_the_same(spec, *image))
      throw Error(ErrorKind::config, "loader.flip",
                  "mirrors \"image\", and " + to_text(spec) +
                      ", which may show the same, does not say whether it turns with it",
                  "leave loader.flip out, or set TensorSpec::turns_with_image in the source's makes()");
}

namespace {

// Of pictures that encoders have seen, only `ditto encode` could mirror them.
void require_sides(const Source& source) {
  const auto* encoded = dynamic_cast<const EncodedSet*>(&source);
  if (!encoded) return require_known_turns(source);
  const auto& notes = encoded->encoding();
  for (const auto& spec : notes.made)
    if (!notes.flip && notes.turn.count(spec.name))
      throw Error(ErrorKind::config, "loader.flip",
                  "is true, and loader.encoded has \"" + spec.name + "\" of one side alone: its flip is false",
                  "leave loader.flip out, or encode the recipe with --flip");
}

}  // namespace

Loader::Loader(std::shared_ptr<const Source> source, const LoaderOptions& options, uint64_t seed, Log log)
    : state_(std::make_unique<State>(std::move(source), options, seed, std::move(log))) {
  State& state = *state_;
  if (options.flip) require_sides(*state.source);
  for (const auto& warning : state.source->warnings()) {
    if (options.strict)
      throw Error(ErrorKind::data, "loader", warning, "repair the data, or set loader.strict = false to do without it");
    if (state.log) state.log(shown(warning, kSentenceShown));
  }
  state.threads_do.resize(static_cast<size_t>(std::max<int64_t>(options.threads, 1)));
  for (int64_t i = 0; i < options.threads; ++i)
    state.threads.emplace_back([&state, i](const std::stop_token& stop) { state.work(stop, static_cast<size_t>(i)); });
  if (options.stall_s > 0 && state.log)
    state.threads.emplace_back([&state](const std::stop_token& stop) { state.watch(stop); });
}

Loader::~Loader() = default;

void Loader::State::begin_to_read() {
  if (!std::exchange(reads, true)) report::keep_freed_memory();
}

void Loader::expect(Upcoming upcoming) {
  state_->begin_to_read();
  {
    const std::lock_guard lock(state_->mutex);
    state_->queue.clear();
  }
  state_->upcoming = state_->options.threads > 0 ? std::move(upcoming) : nullptr;
  state_->asked = 0;
  state_->refill();
}

void Loader::State::read_here(BatchJob& job, int64_t row) {
  {
    const std::lock_guard lock(mutex);
    waits_since = Clock::now();
    threads_do[0] = {order.index(job.places().list[static_cast<size_t>(row)]), *waits_since};
  }
  job.read(row);
  const std::lock_guard lock(mutex);
  waits_since.reset();
  threads_do[0] = {};
}

std::shared_ptr<BatchJob> Loader::read(Places places) {
  state_->begin_to_read();
  const auto start = Clock::now();
  std::shared_ptr<BatchJob> job;
  if (state_->options.threads > 0) {
    job = state_->fetch(places);
  } else {
    job = state_->make_job(places);
    for (int64_t row = 0; row < places.count(); ++row) state_->read_here(*job, row);
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
  const auto first = first_of(state_->messages.empty() ? "" : state_->messages.front());
  throw Error(ErrorKind::data, "loader",
              std::to_string(count) + " samples could not be decoded, loader.max_bad is " +
                  std::to_string(state_->options.max_bad) +
                  (first.empty() ? ", and all of them came before the run went on" : "; the first: " + first),
              "repair the data (`ditto data verify RECIPE` lists every bad sample) or raise loader.max_bad");
}

const std::set<int64_t>& Loader::left_out() const { return state_->left_out; }

void Loader::had_left_out(const std::set<int64_t>& numbers) { state_->left_out.insert(numbers.begin(), numbers.end()); }

Batch Loader::next(Places places) {
  const auto job = read(places);
  std::vector<int64_t> bad;
  for (const auto& sample : job->bad()) bad.push_back(sample.place);
  leave_out(bad, [](const std::string& mine) { return mine; });
  return job->result();
}

std::vector<int64_t> Loader::size_of(int64_t place) const {
  return size_in_data(*state_->source, state_->order.index(place));
}

int64_t Loader::number_of(int64_t place) const { return state_->order.index(place); }

double Loader::waited_s() const { return state_->waited; }

std::string DataWait::add(double waited_s, double step_s) {
  constexpr double kShare = 0.1, kLeastSeconds = 10;
  constexpr int64_t kLeastSteps = 10;
  if (said_ || steps_++ < 0) return {};
  waited_ += waited_s;
  took_ += step_s;
  if (steps_ < kLeastSteps || took_ < kLeastSeconds) return {};
  const double share = waited_ / took_;
  const auto steps = std::exchange(steps_, 0);
  waited_ = took_ = 0;
  said_ = share > kShare;
  if (!said_) return {};
  const auto threads = threads_ == 0 ? std::string("set loader.threads = 2, or more")
                       : threads_ < processors_
                           ? fmt::format("raise loader.threads ({} now, of {} processors)", threads_, processors_)
                           : fmt::format("loader.threads is {}, and there are {} processors", threads_, processors_);
  return fmt::format(
      "training waits for data {:.0f} % of its time (of {} steps); {}, make the pictures smaller beforehand, or keep "
      "them on a faster disk",
      100 * share, steps, threads);
}

}  // namespace ditto
