#include "parallel/local_mesh.h"

#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <ditto/error.h>

namespace ditto::testing {

namespace {

// Of a collective that not all ranks join. Gloo waits five times as long for a peer to connect.
constexpr std::chrono::seconds kTimeout{60};

int world_of(const AxisDegrees& degrees) {
  int size = 1;
  for (const auto& [axis, degree] : degrees) size *= degree;
  return size;
}

// Where ranks meet. Once one has failed nobody is let in any more: members of a group who have all come connect, and
// the others do not wait for who will not come.
class Meeting final : public c10d::HashStore {
 public:
  void call_off() {
    const std::lock_guard lock(mutex_);
    is_off_ = true;
  }
  using HashStore::set;
  void set(const std::string& key, const std::vector<uint8_t>& data) override {
    const std::lock_guard lock(mutex_);
    check_is_on();
    HashStore::set(key, data);
  }
  using HashStore::wait;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    const auto until = std::chrono::steady_clock::now() + timeout;
    while (!are_there(keys)) {
      TORCH_CHECK_WITH(DistStoreError, std::chrono::steady_clock::now() < until, "another rank did not come in time");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

 private:
  bool are_there(const std::vector<std::string>& keys) {
    const std::lock_guard lock(mutex_);
    const bool are_there = check(keys);
    if (!are_there) check_is_on();
    return are_there;
  }
  void check_is_on() const { TORCH_CHECK_WITH(DistStoreError, !is_off_, "another rank has failed"); }
  std::mutex mutex_;
  bool is_off_ = false;
};

struct Outcome {
  std::string problem;
  bool is_cause = true;  // and not that another rank has gone
};

Error did_not_form(int rank, const std::string& label, const std::string& why) {
  return Error(ErrorKind::distributed, "rank " + std::to_string(rank),
               "the group along " + label + " did not form: " + why.substr(0, why.find('\n')),
               "another rank stopped before it joined: its own last message says why");
}

Outcome outcome_of(const std::function<std::string()>& body) {
  try {
    return {body()};
  } catch (const Error& error) {
    return {std::string("threw: ") + error.what(), error.kind() != ErrorKind::distributed};
  } catch (const c10::Error& error) {
    return {std::string("threw: ") + error.what_without_backtrace()};
  } catch (const std::exception& error) {
    return {std::string("threw: ") + error.what()};
  }
}

Outcome run_rank(int rank, const AxisDegrees& degrees, const c10::intrusive_ptr<Meeting>& meeting,
                 const std::function<std::string(const Mesh&)>& body) {
  const LocalMesh mesh(rank, degrees, meeting);
  const auto outcome = outcome_of([&] { return body(mesh); });
  if (!outcome.problem.empty()) meeting->call_off();  // at once: the mesh may wait for its transfers before it goes
  return outcome;
}

}  // namespace

LocalMesh::LocalMesh(int rank, const AxisDegrees& degrees, c10::intrusive_ptr<c10d::Store> store)
    : rank_(rank), degrees_(degrees), store_(std::move(store)) {}
LocalMesh::~LocalMesh() = default;

int LocalMesh::size(Axis axis) const {
  const auto it = degrees_.find(axis);
  return it == degrees_.end() ? 1 : it->second;
}

int LocalMesh::index(Axis axis) const {
  int rest = rank_;
  for (auto it = kAxes.rbegin(); it != kAxes.rend() && *it != axis; ++it) rest /= size(*it);
  return rest % size(axis);
}

int LocalMesh::world_size() const { return world_of(degrees_); }

const Group& LocalMesh::group(const AxisSet& axes) const {
  AxisSet real;
  for (const Axis axis : axes)
    if (size(axis) > 1) real.insert(axis);
  const auto it = groups_.find(real);
  return it != groups_.end() ? it->second : groups_.emplace(real, connect(real)).first->second;
}

Group LocalMesh::connect(const AxisSet& axes) const {
  if (axes.empty()) return Group();
  int rank = 0, size = 1;
  std::string label, key;  // the key is equal on the members of a group and on nobody else
  for (const Axis axis : kAxes) {
    const bool inside = axes.count(axis) != 0;
    key += std::string(name(axis)) + (inside ? "*" : std::to_string(index(axis))) + "/";
    if (!inside) continue;
    rank = rank * this->size(axis) + index(axis);
    size *= this->size(axis);
    label += (label.empty() ? "" : "+") + std::string(name(axis));
  }
  const auto store = c10::make_intrusive<c10d::PrefixStore>(key, store_);
  const auto options = c10d::ProcessGroupGloo::Options::create(kTimeout);
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  options->threads = 1;  // collectives run in the order of their calls
  auto transport = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
  transport->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  try {
    const auto backend = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
    transport->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, backend);
    // All members are connected before one goes on: it may throw, and be gone, while others still connect. The
    // transport's own barrier is none for threads (Group::barrier).
    backend->barrier()->wait();
  } catch (const c10::Error& error) {
    throw did_not_form(rank_, label, error.what_without_backtrace());
  } catch (const std::exception& error) {
    throw did_not_form(rank_, label, error.what());
  }
  return Group(rank, size, label, std::move(transport), traffic_);
}

std::string on_ranks(const AxisDegrees& degrees, const std::function<std::string(const Mesh&)>& body) {
  // LibTorch's flight recorder is one for all of a process, and not made for ranks in threads.
  ::setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
  const auto meeting = c10::make_intrusive<Meeting>();
  std::vector<Outcome> outcomes(static_cast<size_t>(world_of(degrees)));
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < outcomes.size(); ++rank)
    threads.emplace_back([&, rank] { outcomes[rank] = run_rank(static_cast<int>(rank), degrees, meeting, body); });
  for (auto& thread : threads) thread.join();
  std::string follows;
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (outcomes[rank].problem.empty()) continue;
    const auto text = "rank " + std::to_string(rank) + ": " + outcomes[rank].problem;
    if (outcomes[rank].is_cause) return text;
    if (follows.empty()) follows = text;
  }
  return follows;
}

}  // namespace ditto::testing
