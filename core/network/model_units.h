// A model on a rank: made as its setting says, with its adapter, and its parameters in the layout.
#pragma once

#include <memory>
#include <optional>

#include <ditto/parallel/program.h>

#include "core/network/running_units.h"

namespace ditto {

class ModelUnits : public RunningUnits {
 public:
  struct Setting : RunningUnits::Setting {
    ModelNeeds needs;
    std::optional<AdapterOptions> adapter = {};
    std::optional<TreadOptions> tread = {};
  };
  // [tread], of this model's blocks; none: all run all tokens.
  std::optional<TokenRoute> route() const;

  const Setting setting;
  std::shared_ptr<Model> model;
  std::optional<AdapterOptions> adapter;  // what its setting asks for, with all that it left to the weights

 protected:
  // Uncut, its parameters without numbers. Mesh and table outlive it. Throws Error(config) or Error(plugin).
  ModelUnits(Components& components, const Mesh& mesh, std::shared_ptr<const OpTable> table, Setting setting);
  ~ModelUnits() = default;
};

}  // namespace ditto
