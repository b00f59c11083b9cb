// Another network of the run, frozen: an autoguidance checkpoint, a distillation teacher, an encoder of features.
#pragma once

#include <optional>
#include <string>

#include "core/network/other_network.h"

namespace ditto {

class FrozenNetwork final : public OtherNetwork {
 public:
  // Reads its weights, of a run or in another project's format. Ranks along the pipeline axis hold copies: it is run
  // where it is asked for. Throws Error(config) or Error(checkpoint).
  FrozenNetwork(Components& components, const NetworkSection& section, const Surroundings& around);

  Outputs run(const Batch& batch, const std::vector<int64_t>& features) override;
  void require_same_schedule() const override;
  const std::string& fingerprint() const { return fingerprint_; }  // of its weights

 private:
  // What model the weights are of, and where they lie.
  struct From {
    Recipe recipe;
    SavedShapes shapes;
    std::optional<SavedModel> saved;  // none: another project's
    std::string file, reading;        // which then is read
  };
  static From open(Components& components, const NetworkSection& section);
  void note_other_channels();
  void refuse_gradients(const Batch& batch) const;
  std::string other_schedule_, fingerprint_;
};

}  // namespace ditto
