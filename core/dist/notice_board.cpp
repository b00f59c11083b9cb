#include "core/dist/notice_board.h"

#include <cstdlib>
#include <sstream>

#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <ditto/error.h>

#include "core/dist/listen.h"

namespace ditto {

namespace {

constexpr const char* kVerdict = "verdict";
constexpr const char* kLeft = "left";

std::string beat_of(int rank) { return "beat/" + std::to_string(rank); }

std::vector<uint8_t> bytes(const std::string& text) { return {text.begin(), text.end()}; }
std::string text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

std::string first_line(const std::exception& error) {
  const std::string all = error.what();
  return all.substr(0, all.find('\n'));
}

std::vector<uint8_t> packed(const SignOfLife& sign) {
  return bytes(std::to_string(sign.beat) + " " + std::to_string(sign.progress) + " " + char(sign.state) + " " +
               sign.doing);
}

SignOfLife unpacked_sign(const std::string& text) {
  std::istringstream in(text);
  SignOfLife sign;
  char state = SignOfLife::busy;
  in >> sign.beat >> sign.progress >> state >> std::ws;
  sign.state = static_cast<SignOfLife::State>(state);
  std::getline(in, sign.doing);
  return sign;
}

Verdict unpacked_verdict(const std::string& text) {
  std::istringstream in(text);
  Verdict verdict;
  char kind = Verdict::lost;
  in >> verdict.rank >> kind >> verdict.by >> std::ws;
  verdict.kind = static_cast<Verdict::Kind>(kind);
  verdict.text = std::string(std::istreambuf_iterator<char>(in), {});
  return verdict;
}

}  // namespace

std::string to_text(const Verdict& verdict) {
  return "rank " + std::to_string(verdict.rank) +
         (verdict.kind == Verdict::failed ? " failed"
          : verdict.kind == Verdict::lost ? " was lost"
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

NoticeBoard::NoticeBoard(const RankInfo& rank, std::chrono::milliseconds timeout) : rank_(rank.rank) {
  auto guest = rank;
  guest.store_is_launchers = true;  // this connection hosts nothing
  store_ = c10::make_intrusive<c10d::PrefixStore>("watch", connect_to_store(guest, timeout));
}

void NoticeBoard::post(const SignOfLife& sign) { store_->set(beat_of(rank_), packed(sign)); }

std::optional<SignOfLife> NoticeBoard::sign_of(int rank) {
  if (!store_->check({beat_of(rank)})) return std::nullopt;
  return unpacked_sign(text(store_->get(beat_of(rank))));
}

Verdict NoticeBoard::claim(const Verdict& verdict) {
  const auto mine =
      bytes(std::to_string(verdict.rank) + " " + char(verdict.kind) + " " + std::to_string(rank_) + " " + verdict.text);
  return unpacked_verdict(text(store_->compareSet(kVerdict, {}, mine)));
}

std::optional<Verdict> NoticeBoard::verdict() {
  if (!store_->check({kVerdict})) return std::nullopt;
  return unpacked_verdict(text(store_->get(kVerdict)));
}

void NoticeBoard::leave() { store_->add(kLeft, 1); }
int64_t NoticeBoard::have_left() { return store_->add(kLeft, 0); }

}  // namespace ditto
