#include "core/mesh/gloo_mesh.h"

#include <cstdlib>
#include <thread>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <ditto/error.h>
#include <ditto/parallel/transport.h>

#include "core/measure/processors.h"
#include "core/mesh/shared_memory.h"
#include "core/ranks/rank_status.h"

namespace ditto {

namespace {

constexpr const char* kInterface = "GLOO_SOCKET_IFNAME";

std::string as_text(const Degrees& degrees) {
  std::string text;
  for (const auto& [axis, degree] : degrees)
    if (degree > 1) text += (text.empty() ? "" : " x ") + std::string(name(axis)) + " " + std::to_string(degree);
  return text.empty() ? "1" : text;
}

std::string line_of(const std::exception& error) {
  const std::string all = error.what();
  return all.substr(0, all.find('\n'));
}

std::shared_ptr<gloo::transport::Device> device(const std::string& master_address) {
  if (const char* interface = std::getenv(kInterface))
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  // Ranks that meet at the loopback address are on one machine, whatever its name resolves to.
  if (master_address == "localhost" || master_address.rfind("127.", 0) == 0)
    return c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  return c10d::ProcessGroupGloo::createDefaultDevice();
}

}  // namespace

Degrees complete_degrees(Degrees degrees, int world_size) {
  int64_t others = 1;
  for (const Axis axis : kAxes) {
    int64_t& degree = degrees.try_emplace(axis, axis == Axis::replicate ? 0 : 1).first->second;
    if (degree < (axis == Axis::replicate ? 0 : 1))
      throw Error(ErrorKind::config, "parallel." + std::string(name(axis)), "is " + std::to_string(degree),
                  "expected at least 1");
    if (axis != Axis::replicate) others *= degree;
  }
  int64_t& replicate = degrees[Axis::replicate];
  const bool left = replicate == 0;
  if (left) replicate = std::max<int64_t>(1, world_size / others);
  if (replicate * others == world_size) return degrees;
  Degrees shown = degrees;
  if (left) shown.erase(Axis::replicate);
  throw Error(ErrorKind::config, "parallel",
              left ? "the degrees " + as_text(shown) + " = " + std::to_string(others) +
                         " do not divide the world size " + std::to_string(world_size)
                   : "the degrees " + as_text(shown) + " = " + std::to_string(replicate * others) +
                         " are not the world size " + std::to_string(world_size),
              "change the degrees, or start " + std::to_string(left ? others : replicate * others) + " ranks");
}

GlooMesh::GlooMesh(const RankInfo& rank, const Degrees& given, std::chrono::milliseconds timeout, Transports others)
    : info_(rank), timeout_(timeout), others_(std::move(others)) {
  lay_out(given);
  if (info_.world_size > 1) connect();
}

GlooMesh::GlooMesh(const GlooMesh& other, const Degrees& degrees, const std::string& name)
    : info_(other.info_), timeout_(other.timeout_), others_(other.others_), store_(other.store_), name_(name) {
  lay_out(degrees);
}

// Who waits at a connection to the store keeps its other users waiting: two threads of two ranks would for ever.
GlooMesh::GlooMesh(const GlooMesh& other, const std::string& purpose)
    : info_(other.info_),
      timeout_(other.timeout_),
      others_(other.others_),
      size_(other.size_),
      index_(other.index_),
      store_(other.store_),
      name_(other.name_ + "/" + purpose + " " + std::to_string(other.beside_++)),
      talks_to_itself_(other.talks_to_itself_) {
  if (info_.world_size == 1) return;
  auto guest = info_;
  guest.store_is_launchers = true;  // this connection hosts nothing
  store_ = connect_to_store(guest, timeout_);
}

GlooMesh::GlooMesh(std::chrono::milliseconds timeout, Transports others)
    : timeout_(timeout),
      others_(std::move(others)),
      store_(c10::make_intrusive<c10d::HashStore>()),
      talks_to_itself_(true) {
  lay_out({});
}

void GlooMesh::lay_out(const Degrees& given) {
  const auto degrees = complete_degrees(given, info_.world_size);
  int rest = info_.rank;
  for (auto axis = kAxes.rbegin(); axis != kAxes.rend(); ++axis) {
    const auto at = static_cast<size_t>(*axis);
    size_[at] = static_cast<int>(degrees.at(*axis));
    index_[at] = rest % size_[at];
    rest /= size_[at];
  }
}

GlooMesh::~GlooMesh() = default;

void GlooMesh::connect() {
  // LibTorch's flight recorder is one for all groups of a process, and looks them up without a lock while another
  // thread's first call may add its own.
  setenv("TORCH_FR_BUFFER_SIZE", "0", 0);
  store_ = connect_to_store(info_, timeout_);
}

std::unique_ptr<Mesh> mesh_beside(const Mesh& mesh, const std::string& purpose) {
  const auto* connected = dynamic_cast<const GlooMesh*>(&mesh);
  if (!connected || mesh.world_size() == 1) return nullptr;
  return std::make_unique<GlooMesh>(*connected, purpose);
}

AxisSet GlooMesh::connected(const AxisSet& axes) const {
  AxisSet list;
  for (const Axis axis : axes)
    if (size(axis) > 1 || talks_to_itself_) list.insert(axis);
  return list;
}

const Group& GlooMesh::group(const AxisSet& axes) const {
  const auto real = connected(axes);
  const std::lock_guard lock(mutex_);
  const auto it = groups_.find(real);
  return it != groups_.end() ? it->second : groups_.emplace(real, make_group(real, name_)).first->second;
}

Group GlooMesh::own_world(const std::string& purpose) const {
  return make_group(connected({kAxes.begin(), kAxes.end()}), purpose);
}

Group GlooMesh::make_group(const AxisSet& axes, const std::string& purpose) const {
  if (axes.empty()) return Group();
  int rank = 0, size = 1;
  std::string label, key;  // the key is equal on the members of a group and on nobody else
  for (const Axis axis : kAxes) {
    if (axes.count(axis) == 0) {
      key += std::string(name(axis)) + std::to_string(index(axis)) + "/";
      continue;
    }
    rank = rank * this->size(axis) + index(axis);
    size *= this->size(axis);
    label += (label.empty() ? "" : "+") + std::string(name(axis));
    key += std::string(name(axis)) + "*/";
  }
  try {
    const auto store = c10::make_intrusive<c10d::PrefixStore>(purpose + "/" + key, store_);
    c10::intrusive_ptr<c10d::Backend> backend;
    auto type = c10d::ProcessGroup::BackendType::CUSTOM;
    const auto connected_by = [&](Transport& plugin) {
      return plugin.connect(c10::make_intrusive<c10d::PrefixStore>(plugin.backend(), store), rank, size, timeout_);
    };
    for (const auto& other : others_)
      if (other->device() == c10::DeviceType::CPU) backend = connected_by(*other);
    // Where an interface is chosen, it is for all that ranks say.
    if (!backend && size > 1 && !std::getenv(kInterface)) {
      const int ranks = std::max(size, info_.local_world_size);
      backend = SharedMemory::connect(c10::make_intrusive<c10d::PrefixStore>("shared memory", store), rank, size,
                                      timeout_, report::processors_of_rank(ranks) > 0);
    }
    if (!backend) {
      const auto options = c10d::ProcessGroupGloo::Options::create(timeout_);
      options->devices.push_back(device(info_.master_address));
      options->threads = 1;  // collectives run in the order of their calls
      backend = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
      type = c10d::ProcessGroup::BackendType::GLOO;
    }
    auto transport = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
    transport->setDefaultBackend(type);
    transport->setBackend(c10::DeviceType::CPU, type, backend);
    for (const auto& other : others_) {
      if (other->device() == c10::DeviceType::CPU) continue;
      auto other_type = c10d::ProcessGroup::strToBackendType(other->backend());
      // A group keeps one backend of a type: setBackend would hand out the CPU's for a device of the same type, and
      // drop this one. Collectives go by the device alone, whatever its backend's type.
      if (other_type == type) other_type = c10d::ProcessGroup::BackendType::UNDEFINED;
      transport->setBackend(other->device(), other_type, connected_by(*other));
    }
    // All members are connected before one goes on: it may be done, and gone, while others still connect.
    backend->barrier()->wait();
    return Group(rank, size, label, std::move(transport), purpose == name_ ? traffic_ : nullptr);
  } catch (const std::exception& error) {
    throw Error(ErrorKind::distributed, "rank " + std::to_string(info_.rank),
                "the group along " + label + " (" + std::to_string(size) + " ranks) did not form: " + line_of(error),
                "another rank stopped before it joined: its own last message says why");
  }
}

}  // namespace ditto
