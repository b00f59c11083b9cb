// How far a long task is: one line that is rewritten in place on a terminal, plain lines elsewhere.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace ditto::report {

enum class ProgressStyle {
  automatic,  // a bar on a terminal that can move its cursor, else plain lines
  bar,
  plain,
  none,  // messages only
};
ProgressStyle progress_style(std::string_view name);  // auto, bar, plain, none; Error(config) names the nearest

struct ProgressOptions {
  ProgressStyle style = ProgressStyle::automatic;
  std::string unit = "step";                     // "step 12/100"
  std::string rate = " img/s";                   // what follows a rate: "412 img/s"; "/s" where the unit says it all
  double every_s = 10;                           // between plain lines; the first and the last come anyway
  int descriptor = 2;                            // standard error; may be closed
  std::function<void(std::string_view)> record;  // gets the plain lines whatever the style: for log.txt
  std::function<double()> now;                   // seconds, never going back; none: the system's clock. For tests
};

struct ProgressState {
  int64_t done = 0;                  // of `total`
  std::optional<int64_t> items;      // pictures so far, which the rate counts; none: `done`
  std::optional<double> loss;        // of this step; shown smoothed
  std::optional<double> data_wait;   // share of time spent waiting for data, 0 … 1; shown smoothed
  std::optional<int64_t> mem_bytes;  // shown as it is
};

// What a line says, all figures made.
struct ProgressView {
  std::string unit, rate_unit;
  int64_t done = 0, total = 0;
  std::optional<double> loss, rate, data_wait, left_s, took_s;
  std::optional<int64_t> mem_bytes;
};
std::string plain_line(const ProgressView& view);
// At most width - 1 letters (the last column would wrap). Fields are left out from the right where they do not fit.
std::string bar_line(const ProgressView& view, int width);
std::string duration_text(double seconds);  // "0:26", "1:02:03", "2d 03:04:05"
std::string bytes_text(int64_t bytes);      // "310 MiB", "1.4 GiB"

// Mean of the latest values, each old one weighing 0.95 of the next, and none before the first.
class Smoothed {
 public:
  double add(double value);  // a value that is not finite is returned and forgotten

 private:
  double sum_ = 0, weight_ = 0;
};

// Safe from several threads. Never throws on output: a closed or broken descriptor is left alone from then on (where
// SIGPIPE is ignored, as prepare_streams does).
class Progress {
 public:
  // `start`: how far a resumed task is already (done and items). Rates count from the first update on that is further.
  explicit Progress(int64_t total, ProgressOptions options = {}, const ProgressState& start = {});
  ~Progress();  // ends a bar's line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(const ProgressState& state);
  void message(std::string_view line);  // above the bar; is not given to `record`
  void finish();                        // the last line, once; later updates are ignored

 private:
  struct Point {
    double time;
    int64_t done, items;
  };
  ProgressView view(const ProgressState& state, double time);
  void draw();
  void put(std::string_view text);
  void plain(double time);

  std::mutex mutex_;
  ProgressOptions options_;
  const int64_t total_;
  bool bar_ = false, broken_ = false, drawn_ = false, finished_ = false, updated_ = false, begun_ = false;
  double started_ = 0, drawn_at_ = 0, plain_at_ = 0;
  int64_t plain_done_ = -1;
  std::deque<Point> points_;  // the last half minute
  Smoothed loss_, data_wait_;
  ProgressView view_;
};

}  // namespace ditto::report
