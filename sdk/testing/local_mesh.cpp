#include "local_mesh.h"

#include <cstdlib>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <ditto/error.h>

namespace ditto::testing {

namespace {

constexpr std::chrono::seconds kTimeout{60};  // of a collective that not all ranks join

int world_of(const AxisDegrees& degrees) {
  int size = 1;
  for (const auto& [axis, degree] : degrees) size *= degree;
  return size;
}

struct Outcome {
  std::string problem;
  bool is_cause = true;  // and not that another rank has gone
};

Outcome run_rank(int rank, const AxisDegrees& degrees, c10::intrusive_ptr<c10d::Store> store,
                 const std::function<std::string(const Mesh&)>& body) {
  try {
    const LocalMesh mesh(rank, degrees, std::move(store));
    return {body(mesh)};
  } catch (const Error& error) {
    return {std::string("threw: ") + error.what(), error.kind() != ErrorKind::distributed};
  } catch (const c10::Error& error) {
    return {std::string("threw: ") + error.what_without_backtrace()};
  } catch (const std::exception& error) {
    return {std::string("threw: ") + error.what()};
  }
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
  transport->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO,
                        c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options));
  return Group(rank, size, label, std::move(transport), traffic_);
}

std::string on_ranks(const AxisDegrees& degrees, const std::function<std::string(const Mesh&)>& body) {
  // LibTorch's flight recorder is one for all of a process, and not made for ranks in threads.
  ::setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<Outcome> outcomes(static_cast<size_t>(world_of(degrees)));
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < outcomes.size(); ++rank)
    threads.emplace_back([&, rank] { outcomes[rank] = run_rank(static_cast<int>(rank), degrees, store, body); });
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
