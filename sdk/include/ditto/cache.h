// Step caching: where a sample's evaluation is like an earlier one of its own, blocks of the model are skipped, and
// what they added then is added again. A cache says what is watched, and decides for each sample by itself; the host
// measures, keeps what blocks added, and skips.
//
// Legend: T tokens, D width.
#pragma once

#include <cstdint>

#include <ditto/options.h>
#include <ditto/visibility.h>

namespace ditto {

class DITTO_API Cache {
 public:
  static constexpr const char* kKind = "cache";
  static constexpr std::uint32_t kAbi = 5;
  static constexpr Effect kEffect = Effect::nothing;
  struct Needs {};
  virtual ~Cache();

  // What is watched of a sample, [T, D].
  enum class Signal {
    first_residual,   // what the first block adds to the tokens: it is always computed, the others may be skipped
    modulated_input,  // Model::modulated_input: all blocks may be skipped
  };
  virtual Signal signal() const = 0;
  // What it is compared with: the signal of the evaluation before, or of the last one that was computed.
  enum class Against { last, last_computed };
  virtual Against against() const = 0;

  // An evaluation of one sample, which is not its first. Those with conditions and without them are kept apart.
  struct Evaluation {
    double change;  // mean |signal - other| / mean |other|; 0 where both are 0
    bool is_last;   // at the schedule's last time that has noise, or after it
    double& sum;    // the cache's own, of this sample: 0 before its first evaluation
  };
  // Whether its blocks are computed. A first evaluation is, unasked. All that a cache remembers is in `sum`.
  virtual bool computes(const Evaluation& evaluation) const = 0;
};

}  // namespace ditto
