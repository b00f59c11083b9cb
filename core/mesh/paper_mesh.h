// A mesh of any size in one process: what one rank of it would hold and compute, without the others.
#pragma once

#include <map>

#include <ditto/parallel/mesh.h>

#include "core/mesh/gloo_mesh.h"

namespace ditto {

class PaperMesh final : public Mesh {
 public:
  // What the other ranks of a group answer.
  enum class Peers {
    silent,  // nothing: a call on them throws Error(distributed)
    alike,   // what this rank says: shapes are right, and numbers are those of ranks that all hold the same
  };
  // The rank at this place, 0 along the axes that are not named; of complete degrees.
  PaperMesh(Degrees degrees, std::map<Axis, int> place, Peers peers);

  int size(Axis axis) const override { return static_cast<int>(degrees_.at(axis)); }
  int index(Axis axis) const override;
  int rank() const override { return rank_; }
  int world_size() const override { return ranks_; }
  Traffic& traffic() const override { return traffic_; }
  using Mesh::group;
  const Group& group(const AxisSet& axes) const override;

 private:
  const Degrees degrees_;
  const std::map<Axis, int> place_;
  const Peers peers_;
  int rank_ = 0, ranks_ = 1;
  mutable Traffic traffic_;
  mutable std::map<AxisSet, Group> groups_;
};

}  // namespace ditto
