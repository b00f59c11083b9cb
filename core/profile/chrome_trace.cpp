#include "core/profile/chrome_trace.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/formats/file.h"
#include "core/formats/output_folder.h"
#include "core/formats/text/json.h"

namespace ditto {

namespace {

using TraceJson = nlohmann::ordered_json;

uint64_t now_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

// Calls that have ended: [name, thread, start, end, asynchronous]. A call that is under way keeps them.
struct TracedCalls {
  std::mutex mutex;
  TraceJson calls = TraceJson::array();
};
std::atomic<std::shared_ptr<TracedCalls>> traced_calls;  // null: nobody asks; callbacks are plain functions

struct TracedCall : at::ObserverContext {
  std::shared_ptr<TracedCalls> of;
  uint64_t began = now_ns();
};

std::unique_ptr<at::ObserverContext> trace_begins(const at::RecordFunction&) {
  auto call = std::make_unique<TracedCall>();
  call->of = traced_calls.load();
  return call;
}

void trace_ends(const at::RecordFunction& function, at::ObserverContext* context) {
  const auto& call = static_cast<const TracedCall&>(*context);
  if (!call.of) return;
  const auto ended = now_ns();
  const std::lock_guard lock(call.of->mutex);
  call.of->calls.push_back({function.name(), function.threadId(), call.began, ended, function.isAsync()});
}

// A call is complete ("X"); a collective begins and ends ("b", "e") on threads that do other things meanwhile.
void show_event(const TraceJson& event, size_t rank, uint64_t zero, TraceJson& shown) {
  const auto us = [](uint64_t ns) { return 1e-3 * static_cast<double>(ns); };
  const auto begin = event[2].get<uint64_t>(), end = event[3].get<uint64_t>();
  TraceJson call{{"name", event[0]}, {"pid", rank}, {"tid", event[1]}, {"ts", us(begin - zero)}};
  if (!event[4].get<bool>()) {
    call["ph"] = "X", call["dur"] = us(end - begin);
    shown.push_back(call);
    return;
  }
  call["cat"] = "asynchronous", call["id"] = shown.size(), call["ph"] = "b";
  shown.push_back(call);
  call["ph"] = "e", call["ts"] = us(end - zero);
  shown.push_back(call);
}

}  // namespace

void ChromeTrace::require_writable(const std::string& file) {
  const auto folder = std::filesystem::path(file).parent_path();
  formats::require_writable(folder.empty() ? "." : folder.string(), "--trace");
}

ChromeTrace::ChromeTrace() {
  traced_calls.store(std::make_shared<TracedCalls>());
  handle_ = at::addGlobalCallback(at::RecordFunctionCallback(trace_begins, trace_ends)
                                      .scopes({at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE}));
}

ChromeTrace::~ChromeTrace() { end(); }

void ChromeTrace::end() {
  if (handle_) at::removeCallback(handle_);
  handle_ = {};
}

void ChromeTrace::write(const std::string& file, const Mesh& mesh) {
  end();
  const auto calls = traced_calls.exchange(nullptr);
  std::string here;
  {
    const std::lock_guard lock(calls->mutex);
    here = calls->calls.dump();
  }
  const auto all = mesh.world().all_gather_text(here);
  if (mesh.rank() != 0) return;
  std::vector<TraceJson> ranks;
  uint64_t zero = std::numeric_limits<uint64_t>::max();
  for (const auto& text : all)
    for (const auto& event : ranks.emplace_back(TraceJson::parse(text)))
      zero = std::min(zero, event[2].get<uint64_t>());
  auto shown = TraceJson::array();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    shown.push_back(
        {{"name", "process_name"}, {"ph", "M"}, {"pid", rank}, {"args", {{"name", fmt::format("rank {}", rank)}}}});
    for (const auto& event : ranks[rank]) show_event(event, rank, zero, shown);
  }
  const auto text = formats::ascii_json(TraceJson{{"traceEvents", shown}}, -1) + "\n";
  formats::write_file(file, std::as_bytes(std::span(text)), ErrorKind::config);
}

}  // namespace ditto
