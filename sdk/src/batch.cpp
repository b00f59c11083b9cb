#include <ditto/batch.h>

#include <algorithm>

#include <ATen/Functions.h>

#include <ditto/error.h>

namespace ditto {

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
  Batch part;
  for (const auto& [name, tensor] : tensors) part.tensors[name] = tensor.slice(0, begin, end);
  part.ids.assign(ids.begin() + begin, ids.begin() + end);
  part.weights.assign(weights.begin() + begin, weights.begin() + end);
  return part;
}

Batch Batch::to(torch::Device device) const {
  Batch moved = *this;
  for (auto& [name, tensor] : moved.tensors)  // out of pinned memory a copy to a GPU makes nobody wait
    tensor =
        device.is_cuda() && tensor.is_cpu() ? tensor.pin_memory().to(device, /*non_blocking=*/true) : tensor.to(device);
  return moved;
}

}  // namespace ditto
