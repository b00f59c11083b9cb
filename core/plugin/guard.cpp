#include "core/plugin/guard.h"

#include <new>

#include <c10/util/Exception.h>

namespace ditto {

namespace {

std::string trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text.empty() ? "failed without a message" : text;
}

}  // namespace

void rethrow_within(std::string_view place) {
  try {
    throw;
  } catch (const Error& error) {
    throw error.within(place);
  } catch (const c10::DistError& error) {
    throw Error(ErrorKind::distributed, place, trimmed(error.what_without_backtrace()));
  } catch (const c10::Error& error) {
    throw Error(ErrorKind::plugin, place, trimmed(error.what_without_backtrace()));
  } catch (const std::bad_alloc&) {
    throw Error(ErrorKind::plugin, place, "not enough memory");
  } catch (const std::exception& error) {
    throw Error(ErrorKind::plugin, place, trimmed(error.what()));
  } catch (...) {
    throw Error(ErrorKind::plugin, place, "threw something that is not a std::exception", "plugins throw ditto::Error");
  }
}

}  // namespace ditto
