// What a micro-batch makes on its way, as hashes: what units make of it, the gradients of that, and what comes to each
// parameter. Who computes it again on the same model coordinates has to have the same ones.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/receipts/tensor_hash.h"

namespace ditto {

struct Print {
  std::int64_t order = 0;  // in a step: forward, then backward, by units; ranks that hold other units have the same
  std::string what;        // "the forward of block 3: x", "the backward of block 3: blocks.3.qkv.weight"
  HashSum hash;            // of all that came under this name
  friend bool operator==(const Print&, const Print&) = default;
};

class Prints {
 public:
  void add(std::int64_t order, const std::string& what, const HashSum& hash);
  void clear() { all_.clear(); }
  bool empty() const { return all_.empty(); }
  std::string digest() const;                                // hex digits; of no prints empty
  const std::vector<Print>& all() const { return all_; }     // in the order in which they were first added
  const Print* first_difference(const Prints& other) const;  // of these; null: there is none
  friend bool operator==(const Prints& a, const Prints& b) { return !a.first_difference(b) && !b.first_difference(a); }

 private:
  std::vector<Print> all_;
};

void to_json(nlohmann::json& json, const Prints& prints);
void from_json(const nlohmann::json& json, Prints& prints);

}  // namespace ditto
