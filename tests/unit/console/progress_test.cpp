#include "core/console/progress.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include <ditto/error.h>

using namespace ditto;
using namespace ditto::report;

namespace {

// Two ends of something; what was written to one is read from the other.
struct Ends {
  int read = -1, write = -1;
  ~Ends() {
    close_reader();
    if (write >= 0) ::close(write);
  }
  void close_reader() {
    if (read >= 0) ::close(std::exchange(read, -1));
  }
  std::string text() {
    std::string out;
    char part[4096];
    for (ssize_t got; (got = ::read(read, part, sizeof part)) > 0;) out.append(part, static_cast<size_t>(got));
    return out;
  }
};

Ends make_pipe() {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  REQUIRE(::fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
  return {ends[0], ends[1]};
}

// A container without pseudo-terminals has none to try; whoever runs the tests may have said TERM=dumb, which these do
// not mean.
bool terminals_here() {
  ::setenv("TERM", "xterm", 1);
  Ends ends;
  if (::openpty(&ends.read, &ends.write, nullptr, nullptr, nullptr) == 0) return true;
  std::puts("not run: progress on a terminal: this system has no pseudo-terminals (/dev/pts)");
  return false;
}

Ends make_terminal(unsigned short columns) {
  winsize size{24, columns, 0, 0};
  Ends ends;
  REQUIRE(::openpty(&ends.read, &ends.write, nullptr, nullptr, &size) == 0);
  REQUIRE(::fcntl(ends.read, F_SETFL, O_NONBLOCK) == 0);
  return ends;
}

struct Clock {
  double time = 100;
  std::function<double()> reader() {
    return [this] { return time; };
  }
};

ProgressOptions to(const Ends& ends, Clock& clock, ProgressStyle style = ProgressStyle::automatic) {
  ProgressOptions options;
  options.style = style;
  options.descriptor = ends.write;
  options.now = clock.reader();
  return options;
}

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> out;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size());
    out.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return out;
}

// The line a terminal shows at the end.
std::string shown(const std::string& text) { return text.substr(text.rfind("\x1b[K") + 3); }

ProgressView full_view() {
  ProgressView view{"step", " img/s", 250, 1000, 0.0431, 412.4, 0.02, 26.0, {}, 310 << 20};
  return view;
}

}  // namespace

TEST_CASE("where there is no terminal: the first line, one every so many seconds, and the last") {
  Ends ends = make_pipe();
  Clock clock;
  Progress progress(100, to(ends, clock));
  for (int step = 1; step <= 100; ++step) {
    clock.time += 0.25;
    progress.update({.done = step, .items = 16 * step, .loss = 0.5});
  }
  progress.finish();
  const auto seen = lines(ends.text());
  REQUIRE(seen.size() == 4);
  CHECK(seen[0].starts_with("step 1/100"));
  CHECK(seen[1] == "step 41/100, loss 0.5, 64.0 img/s, 0:15 left");
  CHECK(seen[2].starts_with("step 81/100"));
  CHECK(seen[3] == "step 100/100, loss 0.5, 64.0 img/s, in 0:25");
}

TEST_CASE("an interrupted task says how far it came") {
  Ends ends = make_pipe();
  Clock clock;
  Progress progress(100, to(ends, clock));
  for (int step = 1; step <= 3; ++step, clock.time += 1) progress.update({.done = step});
  progress.finish();
  progress.update({.done = 50});
  const auto seen = lines(ends.text());
  REQUIRE(seen.size() == 2);
  CHECK(seen[1].starts_with("step 3/100"));
  CHECK(seen[1].ends_with("in 0:03"));
}

TEST_CASE("a terminal has one line that is rewritten, no wider than it is") {
  if (!terminals_here()) return;
  Ends ends = make_terminal(80);
  Clock clock;
  {
    Progress progress(1000, to(ends, clock));
    std::string text;
    for (int step = 1; step <= 500; ++step) {
      clock.time += 0.2;
      progress.update({.done = step, .items = 8 * step, .loss = 0.25, .data_wait = 0.02, .mem_bytes = 310 << 20});
      text += ends.text();  // a terminal that nobody reads fills up, and blocks
    }
    CHECK(text.find('\n') == text.npos);
    CHECK(shown(text) == "step 500/1000 [====>      ] loss 0.25, 40.0 img/s, data 2 %, 310 MiB, 1:40 left");
    CHECK(shown(text).size() < 80);
  }
  CHECK(ends.text() == "\r\n");
}

TEST_CASE("a terminal that is made narrower gets a shorter line") {
  if (!terminals_here()) return;
  Ends ends = make_terminal(100);
  Clock clock;
  Progress progress(1000, to(ends, clock));
  progress.update({.done = 1, .loss = 0.25});
  ends.text();
  winsize size{24, 30, 0, 0};
  REQUIRE(::ioctl(ends.write, TIOCSWINSZ, &size) == 0);
  clock.time += 1;
  progress.update({.done = 2, .loss = 0.25});
  CHECK(shown(ends.text()).size() < 30);
}

TEST_CASE("the line is not redrawn more often than ten times a second") {
  if (!terminals_here()) return;
  Ends ends = make_terminal(80);
  Clock clock;
  Progress progress(100000, to(ends, clock));
  for (int step = 1; step <= 1000; ++step) {
    clock.time += 0.001;
    progress.update({.done = step});
  }
  size_t drawn = 0;
  const std::string text = ends.text();
  for (size_t at = 0; (at = text.find("\x1b[K", at)) != text.npos; ++at) ++drawn;
  CHECK(drawn >= 9);
  CHECK(drawn <= 11);
}

TEST_CASE("messages stand above the bar, and on lines of their own elsewhere") {
  if (!terminals_here()) return;
  Ends terminal = make_terminal(80), pipe = make_pipe();
  Clock clock;
  Progress bar(10, to(terminal, clock)), plain(10, to(pipe, clock));
  bar.update({.done = 1});
  plain.update({.done = 1});
  terminal.text();
  pipe.text();
  bar.message("checkpoint saved");
  plain.message("checkpoint saved");
  const std::string text = terminal.text();
  CHECK(text.starts_with("\r\x1b[Kcheckpoint saved\r\n"));
  CHECK(shown(text).starts_with("step 1/10"));
  CHECK(pipe.text() == "checkpoint saved\n");
}

TEST_CASE("style none writes messages only, and the record gets plain lines all the same") {
  Ends ends = make_pipe();
  Clock clock;
  std::vector<std::string> recorded;
  auto options = to(ends, clock, ProgressStyle::none);
  options.record = [&](std::string_view line) { recorded.emplace_back(line); };
  Progress progress(2, options);
  progress.update({.done = 1});
  progress.message("hello");
  progress.update({.done = 2});
  progress.finish();
  CHECK(ends.text() == "hello\n");
  CHECK(recorded.size() == 2);
}

TEST_CASE("a closed descriptor, and a reader that went away, end nothing") {
  ::signal(SIGPIPE, SIG_IGN);  // as prepare_streams does
  Clock clock;
  Ends closed = make_pipe();
  auto options = to(closed, clock, ProgressStyle::bar);
  options.descriptor = 977;
  Progress nowhere(10, options);
  nowhere.update({.done = 1});
  nowhere.message("x");
  nowhere.finish();

  Ends ends = make_pipe();
  Progress progress(10, to(ends, clock, ProgressStyle::bar));
  ends.close_reader();
  progress.update({.done = 1});
  clock.time += 1;
  progress.update({.done = 2});
  progress.finish();
}

TEST_CASE("a resumed task counts its rate and time from where it starts") {
  Ends ends = make_pipe();
  Clock clock;
  Progress progress(1000, to(ends, clock), {.done = 900, .items = 9000});
  clock.time += 20;
  progress.update({.done = 905, .items = 9050});
  CHECK(ends.text() == "step 905/1000\n");
  clock.time += 10;
  progress.update({.done = 955, .items = 9550});
  CHECK(ends.text() == "step 955/1000, 50.0 img/s, 0:09 left\n");
}

TEST_CASE("the first step alone gives no rate and no time") {
  Ends ends = make_pipe();
  Clock clock;
  Progress one(1, to(ends, clock)), many(100, to(ends, clock));
  clock.time += 60;
  one.update({.done = 1});
  one.finish();
  many.update({.done = 1});
  clock.time += 1;
  many.update({.done = 2});
  clock.time += 9;
  many.update({.done = 11});
  const auto seen = lines(ends.text());
  REQUIRE(seen.size() == 3);
  CHECK(seen[0] == "step 1/1, in 1:00");
  CHECK(seen[1] == "step 1/100");
  CHECK(seen[2] == "step 11/100, 1.00 img/s, 1:29 left");
}

TEST_CASE("the rate is that of the last half minute") {
  Ends ends = make_pipe();
  Clock clock;
  Progress progress(100000, to(ends, clock));
  for (int i = 1; i <= 100; ++i) clock.time += 1, progress.update({.done = i});
  for (int i = 1; i <= 400; ++i) clock.time += 0.1, progress.update({.done = 100 + i});
  progress.finish();
  CHECK(lines(ends.text()).back().find(", 10.0 img/s") != std::string::npos);
}

TEST_CASE("fields that do not fit are left out from the least wanted, and the time stays") {
  CHECK(
      bar_line(full_view(), 200) ==
      "step 250/1000 [=========>                              ] loss 0.0431, 412 img/s, data 2 %, 310 MiB, 0:26 left");
  CHECK(bar_line(full_view(), 50) == "step 250/1000 loss 0.0431, 412 img/s, 0:26 left");
  for (int width = 1; width < 120; ++width)
    CHECK(static_cast<int>(bar_line(full_view(), width).size()) <= std::max(1, width - 1));
}

TEST_CASE("smoothing starts at the first value and forgets what is not finite") {
  Smoothed smoothed;
  CHECK(smoothed.add(4) == doctest::Approx(4));
  CHECK(smoothed.add(4) == doctest::Approx(4));
  CHECK(std::isnan(smoothed.add(std::nan(""))));
  CHECK(smoothed.add(4) == doctest::Approx(4));
  CHECK(smoothed.add(0) < 4);
  CHECK(smoothed.add(0) > 2);
}

TEST_CASE("durations and sizes") {
  CHECK(duration_text(25.6) == "0:26");
  CHECK(duration_text(3723) == "1:02:03");
  CHECK(duration_text(2 * 86400 + 3 * 3600 + 245) == "2d 03:04:05");
  CHECK(duration_text(std::nan("")) == "?");
  CHECK(bytes_text(310 << 20) == "310 MiB");
  CHECK(bytes_text(int64_t{3} << 29) == "1.5 GiB");
}

TEST_CASE("a style has a name, and a wrong one is answered with the nearest") {
  CHECK(progress_style("auto") == ProgressStyle::automatic);
  CHECK(progress_style("none") == ProgressStyle::none);
  CHECK_THROWS_WITH_AS(progress_style("plane"), doctest::Contains("did you mean 'plain'?"), Error);
}
