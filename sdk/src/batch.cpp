#include <ditto/batch.h>

#include <algorithm>

#include <ATen/Functions.h>

#include <ditto/error.h>
#include <ditto/upload.h>

namespace ditto {

namespace {

bool is_text(const torch::Tensor& tensor) { return tensor.scalar_type() == at::kByte && tensor.dim() == 2; }

}  // namespace

bool is_text(const TensorSpec& spec) { return spec.dtype == at::kByte && spec.shape == std::vector<int64_t>{-1}; }

std::vector<std::string> texts_of(const torch::Tensor& text_BS) {
  if (!is_text(text_BS) || !text_BS.is_cpu())
    throw Error(ErrorKind::plugin, "batch",
                std::string("a text is ") + c10::toString(text_BS.scalar_type()) + " of " +
                    std::to_string(text_BS.dim()) + " dims on " + text_BS.device().str() +
                    ", expected Byte [B, S] in host memory",
                "leave texts where Batch::to leaves them");
  std::vector<std::string> texts;
  for (const auto& row : text_BS.contiguous().unbind()) {
    const auto* bytes = reinterpret_cast<const char*>(row.const_data_ptr<uint8_t>());
    texts.emplace_back(bytes, std::find(bytes, bytes + row.numel(), '\0'));
  }
  return texts;
}

const TensorSpec* find(const TensorSpecs& specs, const std::string& name) {
  const auto at = std::find_if(specs.begin(), specs.end(), [&](const TensorSpec& spec) { return spec.name == name; });
  return at == specs.end() ? nullptr : &*at;
}

std::string to_text(const TensorSpec& spec) {
  auto text = "\"" + spec.name + "\" " + c10::toString(spec.dtype);
  std::string dims;
  for (const int64_t size : spec.shape) dims += (dims.empty() ? "" : ", ") + (size < 0 ? "any" : std::to_string(size));
  text += spec.shape == kAnyShape ? " of any shape" : " [" + dims + "]";
  return spec.values > 0 ? text + " of 0 … " + std::to_string(spec.values - 1) : text;
}

std::string of_part_name(size_t part, const std::string& name) { return std::to_string(part) + "/" + name; }

Outputs of_part(const Outputs& all, const Batch& batch, size_t part) {
  if (batch.parts.empty()) return all;
  const auto prefix = of_part_name(part, "");
  Outputs own;
  for (const auto& [name, tensor] : all)
    if (name.starts_with(prefix)) own[name.substr(prefix.size())] = tensor;
  return own;
}

const torch::Tensor& Batch::at(const std::string& name) const {
  const auto it = tensors.find(name);
  if (it != tensors.end()) return it->second;
  std::string there;
  for (const auto& [other, tensor] : tensors) there += (there.empty() ? "" : ", ") + other;
  throw Error(ErrorKind::shape, "batch",
              "there is no tensor \"" + name + "\", only: " + (there.empty() ? "none" : there),
              "check that the data and the encoders make what the model takes");
}

Batch Batch::slice(int64_t begin, int64_t end) const {
  if (!parts.empty())
    throw Error(ErrorKind::shape, "batch", "of samples of several sizes cannot be sliced", "slice its parts");
  Batch part;
  for (const auto& [name, tensor] : tensors) part.tensors[name] = tensor.slice(0, begin, end);
  for (const auto& [name, all] : lengths) part.lengths[name].assign(all.begin() + begin, all.begin() + end);
  part.ids.assign(ids.begin() + begin, ids.begin() + end);
  part.weights.assign(weights.begin() + begin, weights.begin() + end);
  return part;
}

Batch Batch::to(torch::Device device) const {
  Batch moved = *this;
  std::vector<torch::Tensor*> places;  // of all parts, which go up together
  std::vector<torch::Tensor> list;
  for (Batch* part = moved.parts.empty() ? &moved : moved.parts.data(); part != moved.end(); ++part)
    for (auto& [name, tensor] : part->tensors)
      if (!is_text(tensor)) places.push_back(&tensor), list.push_back(tensor);
  list = uploaded(list, device);
  for (size_t i = 0; i < list.size(); ++i) *places[i] = list[i];
  return moved;
}

Batch Batch::of_parts(std::vector<Batch> parts) {
  if (parts.size() == 1) return std::move(parts.front());
  Batch whole;
  for (const auto& part : parts) {
    whole.ids.insert(whole.ids.end(), part.ids.begin(), part.ids.end());
    whole.weights.insert(whole.weights.end(), part.weights.begin(), part.weights.end());
  }
  whole.parts = std::move(parts);
  return whole;
}

Batch Batch::changed(const std::function<Batch(Batch)>& change) && {
  if (parts.empty()) return change(std::move(*this));
  for (auto& part : parts) part = change(std::move(part));
  return std::move(*this);
}

}  // namespace ditto
