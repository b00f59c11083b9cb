#include "core/ranks/rank_status.h"

#include <cstdlib>
#include <sstream>

#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <ditto/error.h>

#include "core/ranks/listen.h"

namespace ditto {

namespace {

constexpr const char* kFailure = "failure";
constexpr const char* kLeft = "left";

std::string beat_of(int rank) { return "beat/" + std::to_string(rank); }

std::vector<uint8_t> bytes(const std::string& text) { return {text.begin(), text.end()}; }
std::string text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

std::string first_line(const std::exception& error) {
  const std::string all = error.what();
  return all.substr(0, all.find('\n'));
}

std::vector<uint8_t> packed(const Heartbeat& heartbeat) {
  return bytes(std::to_string(heartbeat.beat) + " " + std::to_string(heartbeat.progress) + " " + char(heartbeat.state) +
               " " + heartbeat.doing);
}

Heartbeat unpacked_heartbeat(const std::string& text) {
  std::istringstream in(text);
  Heartbeat heartbeat;
  char state = Heartbeat::busy;
  in >> heartbeat.beat >> heartbeat.progress >> state >> std::ws;
  heartbeat.state = static_cast<Heartbeat::State>(state);
  std::getline(in, heartbeat.doing);
  return heartbeat;
}

RankFailure unpacked_failure(const std::string& text) {
  std::istringstream in(text);
  RankFailure failure;
  char kind = RankFailure::lost;
  in >> failure.rank >> kind >> failure.by >> std::ws;
  failure.kind = static_cast<RankFailure::Kind>(kind);
  failure.text = std::string(std::istreambuf_iterator<char>(in), {});
  return failure;
}

}  // namespace

std::string to_text(const RankFailure& failure) {
  return "rank " + std::to_string(failure.rank) +
         (failure.kind == RankFailure::failed ? " failed"
          : failure.kind == RankFailure::lost ? " was lost"
                                              : " hangs");
}

namespace {

// A lost connection is said once, by the watch; the library would add a stack of addresses for each call that it broke.
void quiet_the_library() {
  if (!std::getenv("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = c10::GLOG_ERROR;
}

}  // namespace

c10::intrusive_ptr<c10d::Store> connect_to_store(const RankInfo& rank, std::chrono::milliseconds timeout) {
  quiet_the_library();
  c10d::TCPStoreOptions options;
  options.port = rank.master_port;
  options.isServer = rank.rank == 0 && !rank.store_is_launchers;
  options.numWorkers = rank.world_size;
  options.waitWorkers = false;
  options.timeout = timeout;
  if (options.isServer)
    options.masterListenFd =
        rank.store_socket >= 0
            ? rank.store_socket
            : listen_at(rank.master_address, rank.master_port,
                        rank.local_world_size < rank.world_size ? Reach::other_machines : Reach::this_machine);
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(rank.master_address, options);
    // torchrun keeps its store when it starts the ranks again: what was said before must not be heard.
    return c10::make_intrusive<c10d::PrefixStore>("ditto/" + rank.attempt, std::move(store));
  } catch (const std::exception& error) {
    throw Error(
        ErrorKind::distributed, "rank " + std::to_string(rank.rank),
        "no store at " + rank.master_address + ":" + std::to_string(rank.master_port) + ": " + first_line(error),
        "check MASTER_ADDR and MASTER_PORT, and that rank 0 is running");
  }
}

RankStatus::RankStatus(const RankInfo& rank, std::chrono::milliseconds timeout) : rank_(rank.rank) {
  auto guest = rank;
  guest.store_is_launchers = true;  // this connection hosts nothing
  store_ = c10::make_intrusive<c10d::PrefixStore>("watch", connect_to_store(guest, timeout));
}

void RankStatus::post(const Heartbeat& heartbeat) { store_->set(beat_of(rank_), packed(heartbeat)); }

std::optional<Heartbeat> RankStatus::heartbeat_of(int rank) {
  if (!store_->check({beat_of(rank)})) return std::nullopt;
  return unpacked_heartbeat(text(store_->get(beat_of(rank))));
}

RankFailure RankStatus::claim(const RankFailure& failure) {
  const auto mine =
      bytes(std::to_string(failure.rank) + " " + char(failure.kind) + " " + std::to_string(rank_) + " " + failure.text);
  return unpacked_failure(text(store_->compareSet(kFailure, {}, mine)));
}

std::optional<RankFailure> RankStatus::failure() {
  if (!store_->check({kFailure})) return std::nullopt;
  return unpacked_failure(text(store_->get(kFailure)));
}

void RankStatus::leave() { store_->add(kLeft, 1); }
int64_t RankStatus::have_left() { return store_->add(kLeft, 0); }

}  // namespace ditto
