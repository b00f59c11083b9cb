#include <ditto/parallel/peer_channel.h>

#include <thread>

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <ditto/error.h>
#include <ditto/parallel/waiting.h>

namespace ditto {

using torch::Tensor;

namespace {

std::string text(const char* verb, const Tensor& tensor, int peer) {
  return std::string(verb) + " rank " + std::to_string(peer) + " of " + c10::toString(tensor.scalar_type()) + " " +
         c10::str(tensor.sizes());
}

// What the library throws comes out as Error(distributed) that names the group and the call.
template <class Call>
auto guarded(const Group& group, const std::string& doing, Call call) {
  try {
    return call();
  } catch (const std::exception& error) {
    const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
    const std::string all = torch_error ? torch_error->what_without_backtrace() : error.what();
    throw Error(
        ErrorKind::distributed,
        "rank " + std::to_string(group.rank()) + " of " + std::to_string(group.size()) + " along " + group.label(),
        doing + " failed: " + all.substr(0, all.find('\n')), "a peer stopped or hangs: its own last message says why");
  }
}

// A watchdog tells by it who waits for a peer.
void wait(const Group& group, const std::string& doing, c10d::Work& work) {
  struct Waiting {
    Waiting() { ++peer_calls().begun; }
    ~Waiting() { ++peer_calls().done; }
  } const waiting;
  guarded(group, doing, [&] { return work.wait(); });
}

}  // namespace

void PeerChannel::send(const Tensor& tensor, int to, int tag, const char* op) {
  if (tensor.numel() == 0) return;  // whoever receives it knows its shape
  torch::NoGradGuard no_grad;
  const auto doing = text("the send to", tensor, to);
  std::vector<Tensor> list{tensor.detach().contiguous().to(torch::kCPU)};
  traffic_.add(group_.label(), op, static_cast<int64_t>(list[0].nbytes()));
  auto work = guarded(group_, doing, [&] { return group_.transport()->send(list, to, tag); });
  sending_.push_back({std::move(work), list[0], doing});
}

void PeerChannel::receive(Tensor& into, int from, int tag, const char* op) {
  if (into.numel() == 0) return;
  torch::NoGradGuard no_grad;
  const auto key = traffic_.add(group_.label(), op, 0);
  const auto began = std::chrono::steady_clock::now();
  const auto doing = text("the receive from", into, from);
  std::vector<Tensor> list{into.is_cpu() ? into : torch::empty_like(into, torch::kCPU)};
  const auto work = guarded(group_, doing, [&] { return group_.transport()->recv(list, from, tag); });
  wait(group_, doing, *work);
  if (traffic_.delay.count() > 0) std::this_thread::sleep_until(began + traffic_.delay);
  traffic_.add_wait(key, std::chrono::steady_clock::now() - began);
  if (!into.is_cpu()) into.copy_(list[0]);
}

void PeerChannel::send_numbers(const std::vector<int64_t>& numbers, int to, int tag) {
  send(torch::tensor({static_cast<int64_t>(numbers.size())}, torch::kLong), to, tag, "send_header");
  send(torch::tensor(numbers, torch::kLong), to, tag, "send_header");
}

std::vector<int64_t> PeerChannel::receive_numbers(int from, int tag) {
  auto length = torch::empty({1}, torch::kLong);
  receive(length, from, tag, "receive_header");
  auto numbers = torch::empty({length.item<int64_t>()}, torch::kLong);
  receive(numbers, from, tag, "receive_header");
  return {numbers.data_ptr<int64_t>(), numbers.data_ptr<int64_t>() + numbers.numel()};
}

void PeerChannel::finish() {
  for (auto& sending : sending_) wait(group_, sending.doing, *sending.work);
  sending_.clear();
}

}  // namespace ditto
