#include "libav.h"

#include <cstdarg>
#include <cstdio>
#include <mutex>

namespace ffmpeg {

namespace {

constexpr std::size_t kMostBytes = std::size_t{256} << 20;

std::string& said() {
  thread_local std::string text;
  return text;
}

// The first one since forget_reasons() is the cause, what follows are its effects.
void keep(void* of, int level, const char* format, va_list values) {
  if (level > AV_LOG_ERROR || !said().empty()) return;
  char line[300];
  int starts_line = 0;
  av_log_format_line2(of, level, format, values, line, sizeof line, &starts_line);
  std::string text;
  for (const char* c = line; *c; ++c) text += *c >= ' ' && *c <= '~' ? *c : ' ';
  if (text.starts_with('['))
    text.erase(0, text.find("] ") == std::string::npos ? 0 : text.find("] ") + 2);  // an address
  while (!text.empty() && (text.back() == ' ' || text.back() == '.')) text.pop_back();
  said() = text;
}

}  // namespace

void set_up_libraries() {
  static std::once_flag once;
  std::call_once(once, [] {
    av_log_set_callback(keep);
    av_max_alloc(kMostBytes);
  });
}

std::string reason(int code) {
  if (!said().empty()) return said();
  if (code == 0) return "";
  char text[AV_ERROR_MAX_STRING_SIZE] = "";
  av_strerror(code, text, sizeof text);
  return text;
}

void forget_reasons() { said().clear(); }

}  // namespace ffmpeg
