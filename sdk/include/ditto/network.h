// Another network of a run, as an objective or a guidance sees it, with weights, layout and precision of its own:
// frozen, or one that learns with the run's model.
#pragma once

#include <vector>

#include <ditto/batch.h>

namespace ditto {

class DITTO_API Network {
 public:
  virtual ~Network();
  virtual const TensorSpecs& takes() const = 0;  // its model's inputs
  virtual TensorSpecs makes() const = 0;         // what its model hands out, with shapes: "features" [T, D]
  virtual int64_t depth() const = 0;             // blocks
  // Whether it learns. An objective asks for it when it is made, and where it matters says which of the two it means:
  // these throw Error(config) if it is the other.
  virtual bool trains() const = 0;
  virtual void require_trains() const = 0;
  virtual void require_frozen() const = 0;
  // Its model's outputs for the batch's tensors: "prediction" as the head gives it, what its makes() names beside, and,
  // of each block asked for, "features.K" [B, T, D]. Ranks that share its parts or the sample call it together.
  // One that trains is part of the caller's graph, its parameters too, where gradients are recorded; strategies allow
  // it one such run a micro-batch. What its blocks add to the loss (the balance of experts) the host adds. Of a frozen
  // one there is no gradient: a tensor that requires one is refused by Error(config).
  virtual Outputs run(const Batch& batch, const std::vector<int64_t>& features = {}) = 0;
  // Throws Error(config) where it was trained with another schedule than the run's: its predictions mean other things.
  virtual void require_same_schedule() const = 0;
  // With the run's schedule around it, as the main model's prediction: c_skip x_t + c_out F(c_in x_t, c_noise(time)).
  // The batch holds its conditions; time is double [B].
  virtual torch::Tensor predict(Batch batch, const torch::Tensor& x_t, const torch::Tensor& time_B) = 0;
};

}  // namespace ditto
