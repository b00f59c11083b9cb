// Several sources as one, whose samples take turns by weight.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ditto/data.h>

#include "core/data/order.h"

namespace ditto {

// One sample after another of each part, one part after another: which comes when is the order's business (order.h), so
// that a position is one number however many parts there are, nested ones included.
//
// All parts make the same tensors: names, dtypes, numbers of dims, and values of an index. A picture's or
// video's side that is not the same in all of them is each sample's own.
class Blend final : public Source {
 public:
  struct Part {
    std::string section;  // of the recipe, for messages: "data.part.0"
    std::shared_ptr<const Source> source;
    // Its share of the samples against the other parts' … or, where that is 0, how often its samples come while the
    // others' that say so too come as often as they say. Both count in millionths.
    double weight = 0, epochs = 1;
  };
  // Throws Error(config) for parts of which some have a weight and some have not, and for tensors that do not agree.
  explicit Blend(std::vector<Part> parts);

  int64_t size() const override { return first_.back(); }
  TensorSpecs makes() const override { return specs_; }
  Sample read(int64_t index) const override;
  SampleInfo info(int64_t index) const override;
  std::vector<std::string> warnings() const override;
  std::vector<std::string> notes() const override;  // also what several parts read
  std::vector<std::string> holds() const override;
  std::string fingerprint() const override;

  const Ordered& ordered() const { return ordered_; }

 private:
  std::pair<size_t, int64_t> find(int64_t index) const;  // part, and its sample
  void join_specs();
  void set_shares();

  std::vector<Part> parts_;
  std::vector<int64_t> first_;  // sample of each part, and of all
  TensorSpecs specs_;
  Ordered ordered_;
};

// What an order of this source's samples runs through.
Ordered ordered(const Source& source);

}  // namespace ditto
