#include "core/data/batch_job.h"

#include <algorithm>
#include <cstring>

#include <ATen/Functions.h>

#include "core/network/names.h"

namespace ditto {

namespace {

bool own_size(const TensorSpec& spec) {
  return std::find(spec.shape.begin(), spec.shape.end(), -1) != spec.shape.end();
}

std::string shape_text(at::IntArrayRef shape) {
  std::string text = "[";
  for (const int64_t n : shape)
    text += (text.size() > 1 ? ", " : "") + (n < 0 ? std::string("any") : std::to_string(n));
  return text + "]";
}

bool fits(const torch::Tensor& tensor, const TensorSpec& spec) {
  if (!tensor.defined() || tensor.scalar_type() != spec.dtype ||
      tensor.dim() != static_cast<int64_t>(spec.shape.size()))
    return false;
  for (size_t d = 0; d < spec.shape.size(); ++d)
    if (spec.shape[d] >= 0 && spec.shape[d] != tensor.size(static_cast<int64_t>(d))) return false;
  return true;
}

// A source that breaks its own promise is a programmer's mistake in a plugin, not bad data.
[[noreturn]] void broken_promise(const Sample& sample, const TensorSpec& spec) {
  const auto it = sample.tensors.find(spec.name);
  const std::string found =
      it == sample.tensors.end() || !it->second.defined()
          ? "nothing"
          : std::string(c10::toString(it->second.scalar_type())) + " " + shape_text(it->second.sizes());
  throw Error(ErrorKind::plugin, sample.place,
              "the source gave " + found + " for \"" + spec.name + "\", but its makes() says " +
                  c10::toString(spec.dtype) + " " + shape_text(spec.shape),
              "correct the source's makes() or read()");
}

// No sample's damage but a mistake of the recipe, which would leave out a class, or train it as the null one.
void check_index(const Sample& sample, const torch::Tensor& index, const TensorSpec& spec) {
  if (spec.values == 0 || spec.dtype != at::kLong || index.numel() == 0) return;
  const auto least = index.min().item<int64_t>(), most = index.max().item<int64_t>();
  const auto value = least < 0 ? least : most;
  if (value < 0 || value >= spec.values)
    throw Error(ErrorKind::config, sample.place,
                "its " + spec.name + " is " + std::to_string(value) + ", but the data says that there are " +
                    std::to_string(spec.values) + ": 0 to " + std::to_string(spec.values - 1),
                "raise that number in [data] (of labels it is data.classes), or correct the sample");
}

}  // namespace

BatchJob::BatchJob(const Source& source, const Order& order, Places places, std::vector<bool> flips)
    : source_(source), order_(order), places_(places), flips_(std::move(flips)), spec_(source.makes()) {
  const auto count = static_cast<size_t>(places.count);
  for (const auto& spec : spec_) {
    texts_.emplace_back(own_size(spec) ? count : 0);
    if (own_size(spec)) continue;
    std::vector<int64_t> shape{places.count};
    shape.insert(shape.end(), spec.shape.begin(), spec.shape.end());
    batch_[spec.name] = torch::zeros(shape, spec.dtype);
  }
  for (int64_t i = 0; i < places.count; ++i) batch_.ids.push_back(places.first + i);
  batch_.weights.assign(count, 1.0);
  errors_.resize(count);
  is_left_out_.resize(count);
}

int64_t BatchJob::take() { return all_taken() ? -1 : taken_++; }
bool BatchJob::finish_row() { return ++finished_ == places_.count; }

void BatchJob::read(int64_t row) {
  try {
    fill(row, source_.read(order_.index(places_.first + row)));
  } catch (...) {
    errors_[static_cast<size_t>(row)] = std::current_exception();
  }
}

void BatchJob::fill(int64_t row, const Sample& sample) {
  for (size_t i = 0; i < spec_.size(); ++i) {
    const auto it = sample.tensors.find(spec_[i].name);
    if (it == sample.tensors.end() || !fits(it->second, spec_[i])) broken_promise(sample, spec_[i]);
    auto tensor = it->second;
    check_index(sample, tensor, spec_[i]);
    if (spec_[i].name == names::kImage && !flips_.empty() && flips_[static_cast<size_t>(row)]) tensor = tensor.flip(-1);
    tensor = tensor.contiguous();
    if (own_size(spec_[i])) {
      texts_[i][static_cast<size_t>(row)] = tensor;
    } else {
      const auto& whole = batch_.at(spec_[i].name);
      auto* to = static_cast<char*>(whole.data_ptr()) + static_cast<size_t>(row) * tensor.nbytes();
      std::memcpy(to, tensor.const_data_ptr(), tensor.nbytes());
    }
  }
}

void BatchJob::pad_texts() {
  for (size_t i = 0; i < spec_.size(); ++i) {
    if (!own_size(spec_[i])) continue;
    std::vector<int64_t> shape{places_.count};
    for (size_t d = 0; d < spec_[i].shape.size(); ++d) {
      int64_t largest = std::max<int64_t>(spec_[i].shape[d], 0);
      for (const auto& text : texts_[i])
        if (text.defined()) largest = std::max(largest, text.size(static_cast<int64_t>(d)));
      shape.push_back(largest);
    }
    auto whole = torch::zeros(shape, spec_[i].dtype);
    for (int64_t row = 0; row < places_.count; ++row) {
      const auto& text = texts_[i][static_cast<size_t>(row)];
      if (!text.defined()) continue;
      auto part = whole[row];
      for (int64_t d = 0; d < text.dim(); ++d) part = part.narrow(d, 0, text.size(d));
      part.copy_(text);
    }
    batch_[spec_[i].name] = whole;
  }
}

std::vector<BadSample> BatchJob::bad() const {
  std::vector<BadSample> out;
  for (int64_t row = 0; row < places_.count; ++row) {
    if (!errors_[static_cast<size_t>(row)]) continue;
    try {
      std::rethrow_exception(errors_[static_cast<size_t>(row)]);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::data) throw;
      out.push_back({places_.first + row, order_.index(places_.first + row), error});
    }
  }
  return out;
}

void BatchJob::leave_out(const std::vector<int64_t>& places) {
  for (const int64_t place : places) {
    const int64_t row = place - places_.first;
    if (row < 0 || row >= places_.count) continue;
    is_left_out_[static_cast<size_t>(row)] = true;
    for (size_t i = 0; i < spec_.size(); ++i) {
      if (own_size(spec_[i]))
        texts_[i][static_cast<size_t>(row)] = torch::Tensor();
      else
        batch_.at(spec_[i].name)[row].zero_();
    }
  }
}

Batch BatchJob::result() {
  pad_texts();
  for (size_t row = 0; row < errors_.size(); ++row)
    if (errors_[row] || is_left_out_[row]) batch_.weights[row] = 0.0;
  return std::move(batch_);
}

}  // namespace ditto
