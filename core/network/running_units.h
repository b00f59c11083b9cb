// Parameters in units with all that surrounds them on this rank: context, layout and strategies. Made uncut and without
// numbers, cut, and filled.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <ditto/parallel/strategy.h>

#include "core/components/components.h"
#include "core/mesh/masked_mesh.h"

namespace ditto {

at::ScalarType dtype_of(const std::string& precision);  // "fp32", "bf16", "fp16" or "fp64"

class RunningUnits {
 public:
  struct Setting {
    std::string section;  // "model", "network.guide", "encoder.text": where its options stand
    Component component;
    at::ScalarType compute = at::kFloat;
    torch::Device device{torch::kCPU};
    uint64_t seed = 0;
    bool trains = true;
    std::string prefix = {};  // before its parameters' names: "network.NAME." of another network that trains
    AxisSet copied = {};      // axes of the mesh along which it is not cut: ranks there hold copies
  };
  RunningUnits(const RunningUnits&) = delete;
  RunningUnits& operator=(const RunningUnits&) = delete;

  enum class Weights {
    none,     // not even memory
    room,     // memory, for numbers that will be read
    initial,  // the keyed draws of the run's seed
  };
  void fill(Weights weights);
  // Data ranks run as many forwards as one another, together.
  bool in_step() const;
  // To be called when the layout's tensors have new values.
  void parameters_changed();

  const Mesh& mesh() const { return mesh_; }
  // Numbers of the whole, uncut: those that are learned, and those that are frozen.
  int64_t learned() const { return learned_; }
  int64_t frozen() const { return frozen_; }

  std::unique_ptr<Context> ctx;
  Layout layout;
  std::set<size_t> on_host;  // entries of the layout whose leaves, and all that goes with them, are not on the device
  std::vector<std::shared_ptr<ParallelStrategy>> strategies;  // in the order of sharding

 protected:
  // Mesh and table outlive it.
  RunningUnits(const Mesh& mesh, std::shared_ptr<const OpTable> table, const Setting& setting);
  ~RunningUnits() = default;
  // Frees the numbers, and puts its parameters, in the dtype that they are kept in, into the layout. `learns`: which of
  // them do, where anything trains.
  void take(Units& units, const std::string& prefix = "",
            const std::function<bool(const std::string& name)>& learns = {});
  // What strategies are told of what they cut.
  struct Shape {
    std::string whose;  // in front of what they refuse: "model 'dit'"
    bool token_local = true;
    int64_t depth = 0;
    std::function<std::vector<double>()> block_costs = {};
    bool streams = true;
  };
  // After it no rank holds more than its share, and that without numbers yet.
  void cut(Components& components, const Shape& shape, const std::function<void(ParallelStrategy&)>& wrap);

 private:
  void shard(ParallelStrategy& strategy);

  const MaskedMesh mesh_;
  const AxisSet copied_;
  const bool trains_;
  int64_t learned_ = 0, frozen_ = 0;
};

// Of frozen networks and of encoders.
enum class FrozenWeights {
  none,   // they are not run
  files,  // nor these, but what else encoders open, as a tokenizer, is there
  room,   // they are run, and their numbers do not matter
  read,
};

// The axes of `parallel = { tensor = 1 }` in the section `section`, besides those that never cut it. Throws
// Error(config).
AxisSet copied_axes(const NetworkSection& section, AxisSet copied);

}  // namespace ditto
