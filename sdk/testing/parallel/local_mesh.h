// Ranks as threads of this process, which talk over Gloo as those of a run do.
#pragma once

#include <functional>
#include <map>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <ditto/parallel/mesh.h>

namespace ditto::testing {

using AxisDegrees = std::map<Axis, int>;  // an axis that is not here has the degree 1

class LocalMesh final : public Mesh {
 public:
  // One of the ranks that share `store`.
  LocalMesh(int rank, const AxisDegrees& degrees, c10::intrusive_ptr<c10d::Store> store);
  ~LocalMesh() override;
  int size(Axis axis) const override;
  int index(Axis axis) const override;
  int rank() const override { return rank_; }
  int world_size() const override;
  using Mesh::group;
  const Group& group(const AxisSet& axes) const override;
  Traffic& traffic() const override { return *traffic_; }

 private:
  Group connect(const AxisSet& axes) const;
  int rank_;
  AxisDegrees degrees_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::shared_ptr<Traffic> traffic_ = std::make_shared<Traffic>();
  mutable std::map<AxisSet, Group> groups_;
};

// Runs `body` on every rank of a mesh of these degrees, and returns what is wrong ("rank 1: …"); nothing where every
// rank returned nothing. What a rank throws is a problem too, and ends the others.
std::string on_ranks(const AxisDegrees& degrees, const std::function<std::string(const Mesh&)>& body);

}  // namespace ditto::testing
