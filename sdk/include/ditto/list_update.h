// Updates of all parameters in one call: the ops "adamw_all", "lion_all" and "sgd_all". A kernel makes each in one pass
// over memory, with what follows from a weight.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ditto/kernels.h>
#include <ditto/optimizer.h>

namespace ditto {

// What such an op is called with. Its tensors are a parameter's after another's, and then what the device knows before
// the host does, and the numbers that change from step to step.
struct DITTO_API ListUpdate {
  struct Parameter {
    torch::Tensor weight, gradient;  // of one dtype
    // What the optimizer keeps of it, and Update's average and copy: of the weight's shape, or undefined.
    torch::Tensor first, second, average, copy;
    bool decayed = false;
  };
  std::vector<Parameter> parameters;
  torch::Tensor late_clip, skip;  // [] fp64 and [] bool, on the parameters' device, or undefined: as Update has them
  double lr = 0, clip = 1, decay = 0;  // as Update has them
  double step = 0;                     // from 1

  // Of an optimizer's, whose states are up to two lists along the parameters. None where a parameter has no gradient,
  // where they lie in several memories, or in the host's: there optimizers have ways of their own.
  static std::optional<ListUpdate> of(const Update& update, const std::vector<OptimizedParameter>& parameters,
                                      const std::vector<std::vector<torch::Tensor>>& states);
  static ListUpdate of(const OpInputs& inputs);
  // `attributes`: the rule's own numbers, that are the same in every step.
  OpInputs inputs(std::map<std::string, Attribute> attributes) const;
};

// Runs `op` where a kernel of `ops` computes the call. Else, and where one of the two is not there, returns false and
// has changed nothing.
DITTO_API bool in_one_call(const std::string& op, const OpTable* ops, const std::optional<ListUpdate>& update,
                           std::map<std::string, Attribute> attributes);

}  // namespace ditto
