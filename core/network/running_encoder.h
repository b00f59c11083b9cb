// An encoder as a rank runs it. One with parameters is a frozen network: cut over the ranks, with weights from a file.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <ditto/encoder.h>
#include <ditto/parallel/program.h>

#include "core/network/running_units.h"
#include "core/network/saved_model.h"

namespace ditto {

// Where its weights lie, and what they say of its options, before it is made.
struct EncoderWeights {
  Component component;              // the section's, with the options that its weights say
  std::string folder;               // Encoder::Needs::folder
  std::string file;                 // another project's; empty: none, or it is not there
  std::string reading;              // which file of a folder that is, for people
  std::optional<SavedModel> saved;  // a run's
};

class RunningEncoder final : public RunningUnits {
 public:
  // What the run gives it.
  struct Surroundings {
    const Mesh& mesh;
    std::shared_ptr<const OpTable> table;
    at::ScalarType compute;
    torch::Device device;
    uint64_t seed;
    FrozenWeights weights;
  };
  // `inputs`: what there is when it encodes. Ranks along the pipeline and context axes hold copies. Throws
  // Error(config), Error(plugin) or Error(checkpoint).
  RunningEncoder(Components& components, const NetworkSection& section, const TensorSpecs& inputs,
                 const Surroundings& around);

  // Its two parts, one after the other, and the way back: of ranks that share its parts, together. What they make is in
  // the dtype that it says, or fp64 in an fp64 run. `phase`: what the batch is for.
  Batch precompute(Batch batch);
  Batch encode(Batch batch, Phase phase);
  torch::Tensor decode(const torch::Tensor& clean);

  const std::string section;
  const EncoderWeights found;
  const std::shared_ptr<Encoder> encoder;
  // Names its weights, and how it encodes; empty: it has none, or they were not read.
  const std::string& fingerprint() const { return fingerprint_; }
  // What names all that precompute makes of a sample, but for the precision that it computes in.
  std::string key() const { return fingerprint_.empty() ? encoder->fingerprint() : fingerprint_; }

 private:
  static Setting setting_of(const NetworkSection& section, const Surroundings& around);
  Batch run(Phase phase, Batch batch, const TensorSpecs& makes, Batch (Encoder::*part)(Batch, Context&) const,
            const char* what) const;
  void cut_and_fill(Components& components, const NetworkSection& from, const Surroundings& around);
  torch::Tensor run_unit(const Unit& unit, const std::function<torch::Tensor()>& body);

  const bool in_doubles_;        // all of the run
  const std::string computing_;  // what a crash in it is named by
  std::string fingerprint_;
  WrappedUnits units_;
};

}  // namespace ditto
