#include "core/console/progress.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <utility>
#include <vector>

#include <ditto/error.h>
#include <ditto/options.h>
#include <ditto/text.h>

#include "core/console/streams.h"

namespace ditto::report {

namespace {

constexpr double kRedrawSeconds = 0.1, kWindowSeconds = 30, kDecay = 0.95;
constexpr const char* kClearLine = "\r\x1b[K";

double system_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool can_move_cursor(int descriptor) {
  const char* term = std::getenv("TERM");
  return ::isatty(descriptor) == 1 && (term == nullptr || std::string_view(term) != "dumb");
}

}  // namespace

ProgressStyle progress_style(std::string_view name) {
  static constexpr std::pair<std::string_view, ProgressStyle> kStyles[] = {{"auto", ProgressStyle::automatic},
                                                                           {"bar", ProgressStyle::bar},
                                                                           {"plain", ProgressStyle::plain},
                                                                           {"none", ProgressStyle::none}};
  std::vector<std::string> names;
  for (const auto& [one, style] : kStyles) {
    if (one == name) return style;
    names.emplace_back(one);
  }
  const std::string near = nearest(name, names);
  throw Error(ErrorKind::config, "progress", "'" + std::string(name) + "' is none of auto, bar, plain, none",
              near.empty() ? "" : "did you mean '" + near + "'?");
}

double Smoothed::add(double value) {
  if (!std::isfinite(value)) return value;
  sum_ = kDecay * sum_ + (1 - kDecay) * value;
  weight_ = kDecay * weight_ + (1 - kDecay);
  return sum_ / weight_;
}

Progress::Progress(int64_t total, ProgressOptions options, const ProgressState& start)
    : options_(std::move(options)), total_(total) {
  if (!options_.now) options_.now = system_now;
  broken_ = ::fcntl(options_.descriptor, F_GETFD) < 0;
  bar_ = options_.style == ProgressStyle::bar ||
         (options_.style == ProgressStyle::automatic && can_move_cursor(options_.descriptor));
  started_ = options_.now();
  points_.push_back({started_, start.done, start.items.value_or(start.done)});
}

Progress::~Progress() {
  const std::lock_guard lock(mutex_);
  if (drawn_) put("\n");
}

ProgressView Progress::view(const ProgressState& state, double time) {
  const int64_t items = state.items.value_or(state.done);
  if (!begun_ && state.done > points_.back().done) {  // the first step fills caches: it says nothing of those to come
    begun_ = true;
    points_.assign(1, {time, state.done, items});
  }
  if (time - points_.back().time >= kRedrawSeconds) points_.push_back({time, state.done, items});
  while (points_.size() > 2 && points_.front().time < time - kWindowSeconds) points_.pop_front();
  const Point& from = points_.front();
  const double seconds = time - from.time;

  ProgressView view{options_.unit, options_.rate, state.done, total_, {}, {}, {}, {}, {}, state.mem_bytes};
  if (seconds > 0 && state.done > from.done) {
    view.rate = static_cast<double>(items - from.items) / seconds;
    view.left_s = static_cast<double>(total_ - state.done) * seconds / static_cast<double>(state.done - from.done);
  }
  if (state.loss) view.loss = loss_.add(*state.loss);
  if (state.data_wait) view.data_wait = data_wait_.add(*state.data_wait);
  if (state.done >= total_) view.took_s = time - started_, view.left_s.reset();
  return view;
}

void Progress::update(const ProgressState& state) {
  const std::lock_guard lock(mutex_);
  if (finished_) return;
  const double time = options_.now();
  view_ = view(state, time);
  const bool first = !std::exchange(updated_, true);
  if (first || time - plain_at_ >= options_.every_s || state.done >= total_) plain(time);
  if (bar_ && (first || time - drawn_at_ >= kRedrawSeconds || state.done >= total_)) {
    drawn_at_ = time;
    draw();
  }
}

void Progress::plain(double time) {
  if (view_.done == plain_done_) return;
  plain_at_ = time;
  plain_done_ = view_.done;
  const std::string line = plain_line(view_);
  if (options_.record) options_.record(line);
  if (!bar_ && options_.style != ProgressStyle::none) put(line + "\n");
}

void Progress::message(std::string_view line) {
  const std::lock_guard lock(mutex_);
  put((drawn_ ? kClearLine : "") + shown(line, line.size()) + "\n");
  if (drawn_) draw();
}

void Progress::finish() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(finished_, true) || !updated_) return;
  const double time = options_.now();
  view_.left_s.reset();
  view_.took_s = time - started_;
  plain(time);
  if (!bar_) return;
  draw();
  put("\n");
  drawn_ = false;
}

void Progress::draw() {
  put(kClearLine + bar_line(view_, terminal_width(options_.descriptor)));
  drawn_ = true;
}

void Progress::put(std::string_view text) { broken_ = broken_ || !write_text(options_.descriptor, text); }

}  // namespace ditto::report
