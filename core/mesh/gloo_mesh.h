// The mesh over the host's own transports of CPU tensors: shared memory in groups whose ranks are all on one machine,
// and Gloo, TCP, in all others.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <ditto/parallel/mesh.h>

#include "core/ranks/launch.h"

namespace c10d {
class Store;
}

namespace ditto {

// How many ranks along each axis; 1 where not given.
using Degrees = std::map<Axis, int64_t>;

// The degrees of a world: `replicate`, where it is 0 or missing, is what is left. Throws Error(config) with all the
// numbers if the product is not the world size.
Degrees complete_degrees(Degrees given, int world_size);

class Transport;
using Transports = std::vector<std::shared_ptr<Transport>>;

class GlooMesh : public Mesh {
 public:
  // Connects to the store, so all ranks make theirs at about the same time. `timeout`: how long a rank waits for its
  // peers, at the start and in every collective. Throws Error(config) for the degrees, Error(distributed) if the store
  // is not found. `others` carry what Gloo does not: each its own device's tensors, in the same groups.
  GlooMesh(const RankInfo& rank, const Degrees& degrees, std::chrono::milliseconds timeout, Transports others = {});
  // Another layout of the same ranks, which meet at the same store; `name` tells the two apart. All ranks make it.
  GlooMesh(const GlooMesh& other, const Degrees& degrees, const std::string& name);
  // The same layout with groups, traffic and a connection to the store of its own, for a thread beside the one that
  // trains; `purpose` tells it apart. All ranks make as many, in the same order.
  GlooMesh(const GlooMesh& other, const std::string& purpose);
  // One rank by itself, whose groups are connected all the same: each call goes through a transport and comes back. For
  // tests of transports and strategies on one device.
  GlooMesh(std::chrono::milliseconds timeout, Transports others);
  ~GlooMesh() override;

  int size(Axis axis) const override { return size_[static_cast<size_t>(axis)]; }
  int index(Axis axis) const override { return index_[static_cast<size_t>(axis)]; }
  int rank() const override { return info_.rank; }
  int world_size() const override { return info_.world_size; }
  using Mesh::group;
  const Group& group(const AxisSet& axes) const override;
  Traffic& traffic() const override { return *traffic_; }
  const c10::intrusive_ptr<c10d::Store>& store() const { return store_; }  // null with one rank
  // All ranks over a transport of their own, for a thread beside the one that trains. `purpose` tells them apart.
  Group own_world(const std::string& purpose) const;

 private:
  AxisSet connected(const AxisSet& axes) const;  // those of them along which there are ranks to talk to
  Group make_group(const AxisSet& axes, const std::string& purpose) const;
  void connect();
  void lay_out(const Degrees& degrees);

  RankInfo info_;
  std::chrono::milliseconds timeout_;
  Transports others_;
  std::array<int, kAxes.size()> size_{}, index_{};
  c10::intrusive_ptr<c10d::Store> store_;
  std::string name_ = "mesh";
  mutable std::atomic<int> beside_{0};  // meshes made of this one
  bool talks_to_itself_ = false;
  std::shared_ptr<Traffic> traffic_ = std::make_shared<Traffic>();
  mutable std::mutex mutex_;
  mutable std::map<AxisSet, Group> groups_;  // by those of the axes that have more than one rank
};

// Such a mesh, for a thread beside the one that uses `mesh`; null where that has no peers: both may use it.
std::unique_ptr<Mesh> mesh_beside(const Mesh& mesh, const std::string& purpose);

}  // namespace ditto
