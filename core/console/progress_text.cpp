#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/console/progress.h"

namespace ditto::report {

namespace {

constexpr int kShortestBar = 8, kLongestBar = 40;

std::string rate_text(double rate) {
  return rate < 10    ? fmt::format("{:.2f}", rate)
         : rate < 100 ? fmt::format("{:.1f}", rate)
                      : fmt::format("{:.0f}", rate);
}

std::string heading(const ProgressView& view) { return fmt::format("{} {}/{}", view.unit, view.done, view.total); }

// The most wanted first; the last go where there is no room.
std::vector<std::string> fields(const ProgressView& view) {
  std::vector<std::string> out;
  if (view.loss) out.push_back(fmt::format("loss {:.4g}", *view.loss));
  if (view.rate) out.push_back(rate_text(*view.rate) + view.rate_unit);
  if (view.data_wait) out.push_back(fmt::format("data {:.0f} %", 100 * *view.data_wait));
  if (view.mem_bytes) out.push_back(bytes_text(*view.mem_bytes));
  return out;
}

// Read last, and kept longest.
std::string time_field(const ProgressView& view) {
  if (view.took_s) return "in " + duration_text(*view.took_s);
  return view.left_s ? duration_text(*view.left_s) + " left" : "";
}

std::string listed(const std::vector<std::string>& parts, const std::string& last) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text + (text.empty() || last.empty() ? "" : ", ") + last;
}

std::string bar(double share, int width) {
  const int full = std::clamp(static_cast<int>(std::floor(share * width)), 0, width);
  std::string text(static_cast<size_t>(full), '=');
  if (full > 0 && full < width) text.back() = '>';
  text.resize(static_cast<size_t>(width), ' ');
  return "[" + text + "]";
}

}  // namespace

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto whole = static_cast<int64_t>(std::llround(std::min(seconds, 1e12)));
  const int64_t days = whole / 86400, hours = whole / 3600 % 24, minutes = whole / 60 % 60, rest = whole % 60;
  if (days > 0) return fmt::format("{}d {:02}:{:02}:{:02}", days, hours, minutes, rest);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, rest);
  return fmt::format("{}:{:02}", minutes, rest);
}

std::string bytes_text(int64_t bytes) {
  const double mebi = static_cast<double>(bytes) / (1 << 20);
  return mebi < 1      ? fmt::format("{:.2f} MiB", mebi)
         : mebi < 1000 ? fmt::format("{:.0f} MiB", mebi)
                       : fmt::format("{:.1f} GiB", mebi / 1024);
}

std::string plain_line(const ProgressView& view) {
  const std::string rest = listed(fields(view), time_field(view));
  return rest.empty() ? heading(view) : heading(view) + ", " + rest;
}

std::string bar_line(const ProgressView& view, int width) {
  const size_t room = static_cast<size_t>(std::max(1, width - 1));
  const std::string head = heading(view), time = time_field(view);
  auto parts = fields(view);
  std::string rest = listed(parts, time);
  while (!parts.empty() && head.size() + 1 + rest.size() > room) {
    parts.pop_back();
    rest = listed(parts, time);
  }
  const int bar_room = static_cast<int>(room) - static_cast<int>(head.size() + 1 + rest.size()) - 3;
  const double share = view.total > 0 ? static_cast<double>(view.done) / static_cast<double>(view.total) : 1;
  std::string line = head;
  if (bar_room >= kShortestBar) line += " " + bar(share, std::min(kLongestBar, bar_room));
  if (!rest.empty()) line += " " + rest;
  return line.substr(0, room);
}

}  // namespace ditto::report
