#include "core/plugin/guard.h"

#include <filesystem>
#include <new>

#include <c10/util/Exception.h>

#include "core/formats/text/json.h"
#include "sdk/src/idle_option.h"

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

// What LibTorch's allocators say that they were asked for: "6144000000 bytes", "2.00 GiB"; empty: this is another
// error.
std::string asked_for(const std::string& text) {
  for (const std::string_view before :
       {"can't allocate memory: you tried to allocate ", "out of memory. Tried to allocate "}) {
    const auto found = text.find(before);
    if (found == std::string::npos) continue;
    const auto begin = found + before.size();
    return text.substr(begin, text.find(". ", begin) - begin);
  }
  return {};
}

// The recipe asks for more than the machine has: no fault of the plugin that was running.
[[noreturn]] void out_of_memory(std::string_view place, const std::string& asked) {
  throw Error(
      ErrorKind::config, place, "not enough memory" + (asked.empty() ? "" : ": " + asked + " more were asked for"),
      "take fewer samples at once (run.micro_batch, validate.batch; `ditto sample --batch`), compute again what "
      "backward needs (parallel.recompute), or share weights among ranks (parallel.shard)");
}

}  // namespace

void rethrow_within(std::string_view place) {
  try {
    throw;
  } catch (const IdleOption& error) {
    throw IdleOption(error.within(place), error.option());
  } catch (const RejectedOption& error) {
    throw RejectedOption(error.within(place));
  } catch (const Error& error) {
    throw error.within(place);
  } catch (const c10::DistError& error) {
    throw Error(ErrorKind::distributed, place, one_line(error.what_without_backtrace()));
  } catch (const c10::Error& error) {
    if (const auto asked = asked_for(error.what_without_backtrace()); !asked.empty()) out_of_memory(place, asked);
    throw Error(ErrorKind::plugin, place, one_line(error.what_without_backtrace()));
  } catch (const std::bad_alloc&) {
    out_of_memory(place, {});
  } catch (const std::filesystem::filesystem_error& error) {  // of a path that somebody gave
    throw Error(ErrorKind::config, place, one_line(formats::plain_reason(error)),
                "check the path, and who may read it");
  } catch (const std::exception& error) {
    throw Error(ErrorKind::plugin, place, one_line(formats::plain_reason(error)));
  } catch (...) {
    throw Error(ErrorKind::plugin, place, "threw something that is not a std::exception", "plugins throw ditto::Error");
  }
}

}  // namespace ditto
