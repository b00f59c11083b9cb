// A mesh in which some axes are left out: ranks along them are alike.
#pragma once

#include <ditto/parallel/mesh.h>

namespace ditto {

class MaskedMesh final : public Mesh {
 public:
  MaskedMesh(const Mesh& mesh, AxisSet left_out) : mesh_(mesh), left_out_(std::move(left_out)) {}
  int size(Axis axis) const override { return left_out_.count(axis) ? 1 : mesh_.size(axis); }
  int index(Axis axis) const override { return left_out_.count(axis) ? 0 : mesh_.index(axis); }
  int rank() const override { return mesh_.rank(); }
  int world_size() const override { return mesh_.world_size(); }
  Traffic& traffic() const override { return mesh_.traffic(); }
  using Mesh::group;
  const Group& group(const AxisSet& axes) const override {
    AxisSet rest = axes;
    for (const Axis axis : left_out_) rest.erase(axis);
    return mesh_.group(rest);
  }

 private:
  const Mesh& mesh_;
  const AxisSet left_out_;
};

}  // namespace ditto
