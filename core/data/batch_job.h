// One micro-batch while it is being read: tensors made beforehand, filled a sample at a time from any thread.
#pragma once

#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <ditto/batch.h>
#include <ditto/data.h>
#include <ditto/error.h>

#include "core/data/encoded_set.h"
#include "core/data/order.h"
#include "core/data/places.h"
#include "core/data/sizes.h"

namespace ditto {

struct BadSample {
  int64_t place;  // in the run's order
  int64_t index;  // in the source
  Error error;
};

// Throws Error(config) for an index, such as a label, that is none of as many values as the specs say.
void check_indices(const Sample& sample, const TensorSpecs& specs);

class BatchJob {
 public:
  // `flips`: per sample whether its picture is mirrored; empty: none is. Samples of one size are a part of the batch,
  // in the order of the places; parts are in the order of their first samples.
  BatchJob(const Source& source, const Order& order, Places places, std::vector<bool> flips);

  const Places& places() const { return places_; }

  // Takes the next sample that nobody has taken; -1: none is left.
  int64_t take();
  bool all_taken() const { return taken_ == places_.count(); }
  void read(int64_t row);  // thread-safe for different rows; never throws
  bool finish_row();       // true: this was the last one

  // Once every row is finished.
  std::vector<BadSample> bad() const;  // by place; rethrows what a row threw, unless it was Error(data)
  // As if the samples at these places had not been decoded here either; places of other batches change nothing.
  void leave_out(const std::vector<int64_t>& places);
  Batch result();  // once

 private:
  struct Row {
    size_t part;
    int64_t row;  // of the part
  };
  struct Part {
    std::vector<int64_t> size;  // own_sides of its samples
    Batch batch;
    std::vector<std::vector<torch::Tensor>> texts;  // by spec, by row: tensors whose length is the sample's own
  };
  void make_parts();
  TensorSpec sized(size_t i, const Part& part) const;
  void fill(int64_t row, const Sample& sample);
  void set_lengths();
  bool is_flipped(int64_t row) const { return !flips_.empty() && flips_[static_cast<size_t>(row)]; }
  void clear(int64_t row);  // as a sample that was not decoded
  void pad_texts(Part& part) const;
  std::vector<int64_t> lengths_of(const Part& part, size_t i) const;  // of the tensors of spec `i`, a text

  const Source& source_;
  const EncodedSet* encoded_;  // the same one; null: it is none
  const Order& order_;
  Places places_;
  std::vector<bool> flips_;
  std::vector<TensorSpec> spec_;
  std::vector<Part> parts_;
  std::vector<Row> rows_;                   // by place
  std::vector<std::exception_ptr> errors_;  // by place
  std::vector<bool> is_left_out_;           // by place
  // Of texts that were encoded before how much counts, by place.
  std::vector<std::map<std::string, int64_t>> lengths_;
  int64_t taken_ = 0, finished_ = 0;  // guarded by the loader's mutex
};

}  // namespace ditto
