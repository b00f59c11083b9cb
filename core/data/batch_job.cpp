#include "core/data/batch_job.h"

#include <algorithm>
#include <cstring>

#include <ATen/Functions.h>

#include "core/data/names.h"

namespace ditto {

namespace {

bool has(const TensorSpec& spec, int64_t kind) {
  return std::find(spec.shape.begin(), spec.shape.end(), kind) != spec.shape.end();
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

void check_indices(const Sample& sample, const TensorSpecs& specs) {
  for (const auto& spec : specs)
    if (const auto it = sample.tensors.find(spec.name); it != sample.tensors.end() && it->second.defined())
      check_index(sample, it->second, spec);
}

BatchJob::BatchJob(const Source& source, const Order& order, Places places, std::vector<bool> flips)
    : source_(source),
      encoded_(dynamic_cast<const EncodedSet*>(&source)),
      order_(order),
      places_(std::move(places)),
      flips_(std::move(flips)),
      spec_(source.makes()) {
  make_parts();
  errors_.resize(places_.list.size());
  is_left_out_.resize(places_.list.size());
  lengths_.resize(places_.list.size());
}

void BatchJob::make_parts() {
  for (const int64_t place : places_.list) {
    auto size = own_sides(source_, spec_, order_.index(place));
    auto at = std::find_if(parts_.begin(), parts_.end(), [&](const Part& part) { return part.size == size; });
    if (at == parts_.end()) at = parts_.insert(at, Part{std::move(size), {}, {}});
    rows_.push_back({static_cast<size_t>(at - parts_.begin()), at->batch.size()});
    at->batch.ids.push_back(place);
    at->batch.weights.push_back(1.0);
  }
  for (auto& part : parts_)
    for (size_t i = 0; i < spec_.size(); ++i) {
      const bool is_text = has(spec_[i], -1);
      part.texts.emplace_back(is_text ? part.batch.ids.size() : 0);
      if (is_text) continue;
      auto shape = sized(i, part).shape;
      shape.insert(shape.begin(), part.batch.size());
      part.batch[spec_[i].name] = torch::empty(shape, spec_[i].dtype);  // read() writes every row
    }
}

// The spec of tensor `i`, with the part's own sides.
TensorSpec BatchJob::sized(size_t i, const Part& part) const {
  auto side = part.size.begin();
  for (size_t k = 0; k < i; ++k) side += std::count(spec_[k].shape.begin(), spec_[k].shape.end(), kOwnSide);
  auto spec = spec_[i];
  for (int64_t& dim : spec.shape)
    if (dim == kOwnSide) dim = *side++;
  return spec;
}

int64_t BatchJob::take() { return all_taken() ? -1 : taken_++; }
bool BatchJob::finish_row() { return ++finished_ == places_.count(); }

void BatchJob::read(int64_t row) {
  try {
    const auto index = order_.index(places_.list[static_cast<size_t>(row)]);
    if (!encoded_) {
      fill(row, source_.read(index));
    } else {
      using Side = EncodedSet::Side;
      auto encoded = encoded_->read(index, is_flipped(row) ? Side::mirrored : Side::as_it_is);
      fill(row, encoded.sample);
      lengths_[static_cast<size_t>(row)] = std::move(encoded.lengths);
    }
  } catch (...) {
    errors_[static_cast<size_t>(row)] = std::current_exception();
    clear(row);
  }
}

void BatchJob::clear(int64_t row) {
  const auto [of, own_row] = rows_[static_cast<size_t>(row)];
  auto& part = parts_[of];
  for (size_t i = 0; i < spec_.size(); ++i) {
    if (has(spec_[i], -1))
      part.texts[i][static_cast<size_t>(own_row)] = torch::Tensor();
    else
      part.batch.at(spec_[i].name)[own_row].zero_();
  }
}

void BatchJob::fill(int64_t row, const Sample& sample) {
  const auto [of, own_row] = rows_[static_cast<size_t>(row)];
  auto& part = parts_[of];
  for (size_t i = 0; i < spec_.size(); ++i) {
    const auto spec = sized(i, part);
    const auto it = sample.tensors.find(spec.name);
    if (it == sample.tensors.end() || !fits(it->second, spec)) broken_promise(sample, spec);
    auto tensor = it->second;
    check_index(sample, tensor, spec);
    const bool turns = spec.name == names::kImage || spec.turns_with_image;
    const bool is_turned = encoded_ && encoded_->has_sides(spec.name);
    if (turns && !is_turned && is_flipped(row)) tensor = tensor.flip(-1);
    tensor = tensor.contiguous();
    if (has(spec, -1)) {
      part.texts[i][static_cast<size_t>(own_row)] = tensor;
    } else {
      const auto& whole = part.batch.at(spec.name);
      auto* to = static_cast<char*>(whole.data_ptr()) + static_cast<size_t>(own_row) * tensor.nbytes();
      std::memcpy(to, tensor.const_data_ptr(), tensor.nbytes());
    }
  }
}

void BatchJob::set_lengths() {
  for (size_t i = 0; i < rows_.size(); ++i)
    for (const auto& [name, length] : lengths_[i]) {
      auto& batch = parts_[rows_[i].part].batch;
      auto& of_name = batch.lengths[name];
      of_name.resize(batch.ids.size());
      of_name[static_cast<size_t>(rows_[i].row)] = length;
    }
}

void BatchJob::pad_texts(Part& part) const {
  for (size_t i = 0; i < spec_.size(); ++i) {
    if (!has(spec_[i], -1)) continue;
    const auto& texts = part.texts[i];
    std::vector<int64_t> shape{part.batch.size()};
    for (size_t d = 0; d < spec_[i].shape.size(); ++d) {
      int64_t largest = std::max<int64_t>(spec_[i].shape[d], 0);
      for (const auto& text : texts)
        if (text.defined()) largest = std::max(largest, text.size(static_cast<int64_t>(d)));
      shape.push_back(largest);
    }
    auto whole = torch::zeros(shape, spec_[i].dtype);
    for (size_t row = 0; row < texts.size(); ++row) {
      const auto& text = texts[row];
      if (!text.defined()) continue;
      auto to = whole[static_cast<int64_t>(row)];
      for (int64_t d = 0; d < text.dim(); ++d) to = to.narrow(d, 0, text.size(d));
      to.copy_(text);
    }
    part.batch[spec_[i].name] = whole;
    if (spec_[i].shape.front() == -1 && !spec_[i].name.ends_with(names::kMask))
      part.batch.lengths[spec_[i].name] = lengths_of(part, i);
  }
}

// As the sample has them, or as far as its mask shows something: what is masked at the end is padding too.
std::vector<int64_t> BatchJob::lengths_of(const Part& part, size_t i) const {
  const auto at = std::find_if(spec_.begin(), spec_.end(), [&](const TensorSpec& spec) {
    return spec.name == spec_[i].name + names::kMask && spec.dtype == at::kBool &&
           spec.shape == std::vector<int64_t>{-1};
  });
  std::vector<int64_t> lengths;
  for (size_t row = 0; row < part.texts[i].size(); ++row) {
    const auto& text = part.texts[i][row];
    int64_t length = text.defined() ? text.size(0) : 0;
    const auto mask = at == spec_.end() ? torch::Tensor() : part.texts[static_cast<size_t>(at - spec_.begin())][row];
    if (mask.defined() && mask.size(0) == length) {
      const bool* shown = mask.const_data_ptr<bool>();
      while (length > 0 && !shown[length - 1]) --length;
    }
    lengths.push_back(length);
  }
  return lengths;
}

std::vector<BadSample> BatchJob::bad() const {
  std::vector<BadSample> out;
  for (size_t row = 0; row < errors_.size(); ++row) {
    if (!errors_[row]) continue;
    try {
      std::rethrow_exception(errors_[row]);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::data) throw;
      out.push_back({places_.list[row], order_.index(places_.list[row]), error});
    }
  }
  return out;
}

void BatchJob::leave_out(const std::vector<int64_t>& places) {
  for (const int64_t place : places) {
    const auto at = std::find(places_.list.begin(), places_.list.end(), place);
    if (at == places_.list.end()) continue;
    const auto index = static_cast<size_t>(at - places_.list.begin());
    is_left_out_[index] = true;
    clear(static_cast<int64_t>(index));
  }
}

Batch BatchJob::result() {
  for (size_t i = 0; i < rows_.size(); ++i)
    if (errors_[i] || is_left_out_[i]) parts_[rows_[i].part].batch.weights[static_cast<size_t>(rows_[i].row)] = 0.0;
  for (auto& part : parts_) pad_texts(part);
  set_lengths();
  std::vector<Batch> batches;
  for (auto& part : parts_) batches.push_back(std::move(part.batch));
  return Batch::of_parts(std::move(batches));
}

}  // namespace ditto
