// What one rank shows of a model's units: each check returns what is wrong, or nothing. Parameters are filled before.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ditto/model.h>

namespace ditto::testing {

// What a unit leaves behind, but for constants.
using Left = std::vector<std::pair<std::string, torch::Tensor>>;
// Runs the model unit by unit; `look` gets each unit, and what runs it once more and gives what it leaves behind, and
// returns what is wrong, which ends it.
std::string through_units(Model& model, const Batch& in, Context& ctx,
                          const std::function<std::string(const Unit&, const std::function<Left()>& run)>& look);

// A unit that uses another one's parameters, which strategies free while that one does not run.
std::string other_units_parameter(Model& model, const Batch& in, Context& ctx);
// Constants that tokens() sets, or what is no constant that constants() sets.
std::string misplaced_constant(Model& model, const Batch& in, Context& ctx);
// A prediction that is another one where every block gets its constants made again, as a stage of a pipeline does.
std::string other_on_a_later_stage(Model& model, const Batch& in, Context& ctx);
// A block that writes to its input, or gives another output when it runs again.
std::string impure_block(Model& model, const Batch& in, Context& ctx);
// A sample whose prediction depends on the others of its batch.
std::string neighbours_seen(Model& model, const Batch& in, Context& ctx);
// What it makes beside its prediction, under names of its own; and one that is not as makes() says, or of other
// samples.
TensorSpecs made_of_extra(const Model& model);
std::string otherwise_handed_out(Model& model, const Batch& in, Context& ctx);
// Tokens that are somewhere else than where they were, or see others, where half of each sample's go around all blocks:
// held against blocks that run all tokens, with attention to those that stay alone.
std::string displaced_tokens(Model& model, const Batch& in, Context& ctx);

}  // namespace ditto::testing
