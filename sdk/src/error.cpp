#include <ditto/error.h>

#include <ditto/text.h>

namespace ditto {

namespace {

constexpr std::size_t kWhereShown = 1000, kWhatShown = 3000, kRemedyShown = 1000;

// One line, whatever names and foreign words went into it.
std::string sentence(std::string_view where, std::string_view what, std::string_view remedy) {
  std::string text = shown(where, kWhereShown);
  if (!where.empty()) text += ": ";
  text += shown(what, kWhatShown);
  if (!remedy.empty()) text.append("; ").append(shown(remedy, kRemedyShown));
  return text;
}

}  // namespace

Error::Error(ErrorKind kind, std::string_view where, std::string_view what, std::string_view remedy)
    : Error(kind, sentence(where, what, remedy)) {}

Error::Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}

Error::~Error() = default;  // out of line: one copy of the type's information for all plugins

Error Error::within(std::string_view place) const {
  return Error(kind_, (place.empty() ? "" : shown(place, kWhereShown) + ": ") + what());
}

int Error::exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::config:
    case ErrorKind::shape: return 2;
    case ErrorKind::plugin: return 3;
    case ErrorKind::data: return 4;
    case ErrorKind::numeric: return 5;
    case ErrorKind::distributed: return 6;
    case ErrorKind::checkpoint: return 7;
  }
  return 2;
}

const char* Error::name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::config: return "config";
    case ErrorKind::plugin: return "plugin";
    case ErrorKind::data: return "data";
    case ErrorKind::shape: return "shape";
    case ErrorKind::numeric: return "numeric";
    case ErrorKind::distributed: return "distributed";
    case ErrorKind::checkpoint: return "checkpoint";
  }
  return "error";
}

}  // namespace ditto
