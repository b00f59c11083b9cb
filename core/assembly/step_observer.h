// What a training step gives, and who looks on at it.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include <torch/types.h>

#include <ditto/batch.h>
#include <ditto/optimizer.h>

#include "core/assembly/program.h"

namespace ditto {

struct StepResult {
  int64_t step = 0;                        // complete ones with it
  double loss = 0, grad_norm = 0, lr = 0;  // of the global batch, whatever the layout
  std::map<std::string, double> losses;    // the loss by name
  double samples = 0;                      // that counted
  bool skipped = false;                    // not finite, or of no sample: the weights stayed
  int64_t updates = 0;                     // optimizer steps made so far
  double loss_scale = 1;                   // that backward ran with
  bool stop = false;                       // some rank asked to stop
};

// Looks on at steps, on every rank, and changes no number of them. In the order of a step:
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual void has_read(const Batch&) {}              // a micro-batch of this rank's, before encoders
  virtual void begins(int64_t /*step*/, Program&) {}  // step from 0; parts of the program may be wrapped
  // The step's gradients are in the leaves, summed and not clipped; their norm: [] fp64, on the run's device.
  virtual void has_gradients(const LossLedger&, const torch::Tensor& /*norm*/) {}
  // Not of a step that is skipped, as far as the host knows by then (Update::skip):
  virtual void updates(Update&) {}  // about to; it may be asked to tell what it has written
  virtual void has_updated() {}
  // Of any: what is left of the next one's encoding (loader.encode_ahead) is waited for.
  virtual void waits_for_encoding() {}
};

}  // namespace ditto
