// One micro-batch while it is being read: tensors made beforehand, filled a sample at a time from any thread.
#pragma once

#include <exception>
#include <mutex>
#include <string>
#include <vector>

#include "core/data/loader.h"

namespace ditto {

struct BadSample {
  int64_t place;  // in the run's order
  int64_t index;  // in the source
  Error error;
};

class BatchJob {
 public:
  // `flips`: per sample whether its picture is mirrored; empty: none is.
  BatchJob(const Source& source, const Order& order, Places places, std::vector<bool> flips);

  const Places& places() const { return places_; }

  // Takes the next sample that nobody has taken; -1: none is left.
  int64_t take();
  bool all_taken() const { return taken_ == places_.count; }
  void read(int64_t row);  // thread-safe for different rows; never throws
  bool finish_row();       // true: this was the last one

  // Once every row is finished.
  std::vector<BadSample> bad() const;  // by place; rethrows what a row threw, unless it was Error(data)
  // As if the samples at these places had not been decoded here either; places of other batches change nothing.
  void leave_out(const std::vector<int64_t>& places);
  Batch result();  // once

 private:
  void fill(int64_t row, const Sample& sample);
  void pad_texts();

  const Source& source_;
  const Order& order_;
  Places places_;
  std::vector<bool> flips_;
  std::vector<TensorSpec> spec_;
  Batch batch_;
  std::vector<std::vector<torch::Tensor>> texts_;  // by spec, by row: tensors whose size is the sample's own
  std::vector<std::exception_ptr> errors_;         // by row
  std::vector<bool> is_left_out_;                  // by row
  int64_t taken_ = 0, finished_ = 0;               // guarded by the loader's mutex
};

}  // namespace ditto
