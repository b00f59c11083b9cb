// What ops are called with, as ops and choices see it.
#include <ditto/kernels.h>

#include <bit>

#include <torch/types.h>

#include <ditto/error.h>

namespace ditto {

using torch::Tensor;

namespace {

const char* short_name(at::ScalarType dtype) {
  switch (dtype) {
    case torch::kFloat: return "fp32";
    case torch::kDouble: return "fp64";
    case torch::kBFloat16: return "bf16";
    case torch::kHalf: return "fp16";
    default: return c10::toString(dtype);
  }
}

template <class Type>
const Type& attribute(const OpInputs& in, const std::string& name, const char* type) {
  const auto it = in.attributes.find(name);
  if (it != in.attributes.end())
    if (const auto* value = std::get_if<Type>(&it->second)) return *value;
  throw Error(ErrorKind::plugin, "an op's attribute \"" + name + "\"",
              it == in.attributes.end() ? "is not given" : std::string("is not ") + type,
              "give it as the op's signature says");
}

}  // namespace

const Tensor& OpInputs::tensor(size_t index) const {
  static const Tensor none;
  return index < tensors.size() ? tensors[index] : none;
}

double OpInputs::number(const std::string& name) const { return attribute<double>(*this, name, "a number"); }
double OpInputs::number(const std::string& name, double otherwise) const {
  return has(name) ? number(name) : otherwise;
}
int64_t OpInputs::whole(const std::string& name) const { return attribute<int64_t>(*this, name, "a whole number"); }
bool OpInputs::flag(const std::string& name) const {
  return has(name) && attribute<bool>(*this, name, "true or false");
}
const std::vector<int64_t>& OpInputs::list(const std::string& name) const {
  return attribute<std::vector<int64_t>>(*this, name, "a list of whole numbers");
}

std::string OpCall::text() const {
  const Tensor& first = inputs.tensors.at(0);
  const int64_t last = first.dim() ? first.size(-1) : 1;
  const auto rows = std::bit_ceil(static_cast<std::uint64_t>(last ? first.numel() / last : 0));
  return op + " " + short_name(dtype) + " " + c10::DeviceTypeName(device, true) + " [" + std::to_string(rows) + ", " +
         std::to_string(last) + "]" + (grad ? " grad" : "");
}

}  // namespace ditto
