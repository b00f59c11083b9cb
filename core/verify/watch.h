// Looks on while micro-batches are computed, and takes their prints: around units, at the gradients of what they make,
// and at each parameter's leaf, before any strategy sees the gradient. So no plugin knows of it, and it changes no
// number.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <ditto/parallel/strategy.h>

#include "core/network/networks.h"
#include "core/verify/prints.h"

namespace ditto {

class AuditWatch {
 public:
  // After all is cut; the networks outlive it.
  explicit AuditWatch(Networks& networks);
  ~AuditWatch();
  AuditWatch(const AuditWatch&) = delete;
  AuditWatch& operator=(const AuditWatch&) = delete;

  // What is computed of the samples at these places goes into `into` from now on, which outlives the next clear().
  void take(const std::vector<int64_t>& places, Prints& into);
  void clear();
  void look_at(Program& program);  // it is to compute them

 private:
  class Around;
  Prints* of(const std::vector<int64_t>& ids) const;  // null: nobody asks
  void see(Prints& into, const Unit& unit, const std::string& name, const torch::Tensor& x);

  std::vector<std::unique_ptr<Around>> around_;              // of each network that trains
  std::vector<std::pair<torch::Tensor, unsigned>> watched_;  // leaves, and their hooks
  std::map<int64_t, Prints*> by_place_;
  Prints* in_backward_ = nullptr;  // whose backward runs; set before any parameter has its gradient
};

}  // namespace ditto
