// An exponential moving average of the weights, in the same slices as the weights, at least fp32.
#pragma once

#include <exception>
#include <functional>
#include <vector>

#include <ditto/optimizer.h>
#include <ditto/parallel/layout.h>

#include "core/config/run_options.h"

namespace ditto {

class Ema {
 public:
  Ema(Layout& layout, const EmaOptions& options);  // starts as a copy of the weights, if enabled
  bool enabled() const { return options_.enabled; }
  // What the optimizer is to do, in the step that makes `updates` of them: average <- decay * average + (1 - decay) *
  // weights.
  void ask(Update& update, int64_t updates);
  double decay(int64_t updates) const;
  std::vector<torch::Tensor>& tensors() { return average_; }  // along the layout's entries; empty if not enabled

  // While it lives, the parameters hold the average; nothing if not enabled. Where an error ends it they keep it, for
  // ranks may not meet in `publish` any more: the run ends.
  class Scope {
   public:
    // `publish` is called whenever the parameters' values have changed.
    Scope(Ema& ema, std::function<void()> publish) : ema_(ema), publish_(std::move(publish)) { swap(); }
    ~Scope() noexcept(false) {
      if (std::uncaught_exceptions() == errors_) swap();
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    void swap() {
      ema_.swap();
      publish_();
    }
    Ema& ema_;
    std::function<void()> publish_;
    const int errors_ = std::uncaught_exceptions();
  };

 private:
  void swap();
  Layout& layout_;
  EmaOptions options_;
  std::vector<torch::Tensor> average_;
};

}  // namespace ditto
