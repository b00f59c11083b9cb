#include "latents.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include <ditto/error.h>

#include <ditto/formats/saved_tensor.h>

namespace webdataset {

namespace formats = ditto::formats;
using ditto::Error;
using ditto::ErrorKind;

namespace {

constexpr float kMostOfLatent = 1000;  // as in NeMo's task encoder

std::string text_of(const Shape& shape) {
  std::string text;
  for (const int64_t side : shape) text += (text.empty() ? "" : ", ") + std::to_string(side);
  return "[" + text + "]";
}

// Without the dims of 1 in front that are more than `dims`.
Shape of_dims(Shape shape, size_t dims) {
  while (shape.size() > dims && shape.front() == 1) shape.erase(shape.begin());
  return shape;
}

at::ScalarType dtype_of(formats::Dtype dtype, const std::string& where) {
  switch (dtype) {
    case formats::Dtype::f16: return at::kHalf;
    case formats::Dtype::bf16: return at::kBFloat16;
    case formats::Dtype::f32: return at::kFloat;
    case formats::Dtype::f64: return at::kDouble;
    default: break;
  }
  throw Error(ErrorKind::data, where,
              "holds numbers of type " + std::string(formats::dtype_name(dtype)) + "; expected F16, BF16, F32 or F64");
}

// The largest absolute value in one pass, or what is not finite: without their sign, numbers are ordered as their bits
// are, and above all of them come infinity and what is none.
float largest_size(const torch::Tensor& tensor) {
  const auto* numbers = static_cast<const std::uint32_t*>(tensor.const_data_ptr());
  std::uint32_t largest = 0;
  for (int64_t i = 0; i < tensor.numel(); ++i) largest = std::max(largest, numbers[i] & 0x7FFFFFFF);
  return std::bit_cast<float>(largest);
}

torch::Tensor tensor_of(const formats::SavedTensor& saved, const Shape& shape, const std::string& where) {
  auto tensor = torch::empty(shape, dtype_of(saved.dtype, where));
  if (!saved.bytes.empty()) std::memcpy(tensor.data_ptr(), saved.bytes.data(), saved.bytes.size());
  tensor = tensor.to(at::kFloat);
  if (!std::isfinite(largest_size(tensor)))
    throw Error(ErrorKind::data, where, "holds numbers that are not finite", "encode the sample again");
  return tensor;
}

Shape checked_latent(const Shape& stored, const Shape& wanted, const std::string& where) {
  const auto shape = of_dims(stored, wanted.empty() ? 4 : wanted.size());
  bool fits = wanted.empty() ? shape.size() == 3 || shape.size() == 4 : shape.size() == wanted.size();
  for (size_t d = 0; fits && d < shape.size(); ++d)
    fits = shape[d] > 0 && (wanted.empty() || wanted[d] == -1 || wanted[d] == shape[d]);
  if (!fits)
    throw Error(ErrorKind::data, where,
                "the latent is " + text_of(stored) + "; expected " +
                    (wanted.empty() ? "[channels, frames, rows, columns], or without frames" : text_of(wanted)),
                "say in data.latent which sides differ: -1");
  return shape;
}

Shape checked_text(const Shape& stored, int64_t width, const std::string& where) {
  const auto shape = of_dims(stored, 2);
  if (shape.size() != 2 || shape[1] < 1 || (width > 0 && shape[1] != width))
    throw Error(ErrorKind::data, where,
                "the text is " + text_of(stored) + "; expected [tokens, " +
                    (width > 0 ? std::to_string(width) : std::string("width")) + "]");
  return shape;
}

}  // namespace

torch::Tensor latent_in(std::span<const std::byte> member, const Shape& shape, const std::string& where) {
  const auto saved = formats::read_saved_tensor(member, where);
  const auto latent = tensor_of(saved, checked_latent(saved.shape, shape, where), where);
  if (const float most = largest_size(latent); most > kMostOfLatent)
    throw Error(ErrorKind::data, where,
                "the latent holds numbers up to " + std::to_string(most) + " in size; at most 1000",
                "encode the sample again");
  return latent;
}

Shape latent_shape(std::span<const std::byte> member, const Shape& shape, const std::string& where) {
  return checked_latent(formats::saved_tensor_shape(member, where).shape, shape, where);
}

torch::Tensor text_in(std::span<const std::byte> member, const std::string& key, int64_t width, int64_t tokens,
                      const std::string& where) {
  const auto saved = formats::read_saved_tensor(member, where, key);
  auto text = tensor_of(saved, checked_text(saved.shape, width, where), where);
  if (tokens > 0 && text.size(0) > tokens) text = text.narrow(0, 0, tokens).clone();
  return text;
}

int64_t text_width_of(std::span<const std::byte> member, const std::string& key, const std::string& where) {
  return checked_text(formats::saved_tensor_shape(member, where, key).shape, 0, where)[1];
}

Shape Shapes::of(int64_t index, const std::function<Shape()>& find) const {
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = known_.find(index); at != known_.end()) return shapes_[static_cast<size_t>(at->second)];
  }
  const auto shape = find();
  const std::lock_guard lock(mutex_);
  const auto [at, fresh] = numbers_.emplace(shape, static_cast<std::int32_t>(shapes_.size()));
  if (fresh) shapes_.push_back(shape);
  known_[index] = at->second;
  return shape;
}

}  // namespace webdataset
