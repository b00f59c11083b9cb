// Sums of tensors in memory that all ranks of a group see: what a transport between ranks of one machine may offer a
// strategy. A strategy asks the group's backend for it (dynamic_cast<SumsInPlace*>).
#pragma once

#include <memory>

#include <torch/types.h>

#include <ditto/visibility.h>

namespace ditto {

// The sum of the members' x in the order of members, ((x0 + x1) + x2) + …, in place and without a copy of anybody's x:
// member i sums numbers [i * p, (i + 1) * p), p = numel / members rounded up, and the others copy what it has made.
class DITTO_API InPlaceSum {
 public:
  virtual ~InPlaceSum();
  virtual void sum() = 0;     // waits for the others' x; makes this member's numbers
  virtual void gather() = 0;  // after it: waits for the others' numbers
  virtual void settle() = 0;  // after it: until the others have read this member's: x may be written again
};

class DITTO_API SumsInPlace {
 public:
  virtual ~SumsInPlace();
  // x: the whole of what the backend's allocateTensor gave, as long on all members, left alone until the last step.
  virtual std::unique_ptr<InPlaceSum> begin_sum(const at::Tensor& x) = 0;
};

}  // namespace ditto
