#include "core/plugin/guard.h"

#include <new>

#include <c10/util/Exception.h>

namespace ditto {

namespace {

// LibTorch's messages have several lines.
std::string one_line(const std::string& text) {
  std::string line;
  for (const char c : text) {
    const bool space = c == '\n' || c == ' ';
    if (!space || (!line.empty() && line.back() != ' ')) line += space ? ' ' : c;
  }
  while (line.ends_with(' ')) line.pop_back();
  return line.empty() ? "failed without a message" : line;
}

}  // namespace

void rethrow_within(std::string_view place) {
  try {
    throw;
  } catch (const Error& error) {
    throw error.within(place);
  } catch (const c10::DistError& error) {
    throw Error(ErrorKind::distributed, place, one_line(error.what_without_backtrace()));
  } catch (const c10::Error& error) {
    throw Error(ErrorKind::plugin, place, one_line(error.what_without_backtrace()));
  } catch (const std::bad_alloc&) {
    throw Error(ErrorKind::plugin, place, "not enough memory");
  } catch (const std::exception& error) {
    throw Error(ErrorKind::plugin, place, one_line(error.what()));
  } catch (...) {
    throw Error(ErrorKind::plugin, place, "threw something that is not a std::exception", "plugins throw ditto::Error");
  }
}

}  // namespace ditto
