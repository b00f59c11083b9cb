#include "core/checkpoint/tensor_file.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace ditto {

using formats::Dtype;

namespace {

constexpr std::array<std::pair<Dtype, at::ScalarType>, 19> kPairs{{
    {Dtype::boolean, at::kBool},
    {Dtype::u8, at::kByte},
    {Dtype::i8, at::kChar},
    {Dtype::f8_e5m2, at::kFloat8_e5m2},
    {Dtype::f8_e4m3, at::kFloat8_e4m3fn},
    {Dtype::f8_e8m0, at::kFloat8_e8m0fnu},
    {Dtype::f8_e4m3fnuz, at::kFloat8_e4m3fnuz},
    {Dtype::f8_e5m2fnuz, at::kFloat8_e5m2fnuz},
    {Dtype::i16, at::kShort},
    {Dtype::u16, at::kUInt16},
    {Dtype::f16, at::kHalf},
    {Dtype::bf16, at::kBFloat16},
    {Dtype::i32, at::kInt},
    {Dtype::u32, at::kUInt32},
    {Dtype::f32, at::kFloat},
    {Dtype::c64, at::kComplexFloat},
    {Dtype::f64, at::kDouble},
    {Dtype::i64, at::kLong},
    {Dtype::u64, at::kUInt64},
}};

}  // namespace

Dtype dtype_of(const torch::Tensor& tensor, const std::string& where, ErrorKind kind) {
  for (const auto& [dtype, scalar] : kPairs)
    if (scalar == tensor.scalar_type()) return dtype;
  throw Error(kind, where,
              std::string("a safetensors file has no element type ") + c10::toString(tensor.scalar_type()));
}

at::ScalarType scalar_type_of(Dtype wanted, const std::string& where, ErrorKind kind) {
  for (const auto& [dtype, scalar] : kPairs)
    if (dtype == wanted) return scalar;
  throw Error(kind, where,
              "has the element type " + std::string(formats::dtype_name(wanted)) + ", which is not supported");
}

std::span<const std::byte> bytes_of(const torch::Tensor& tensor) {
  TORCH_INTERNAL_ASSERT(tensor.device().is_cpu() && tensor.is_contiguous());
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

std::span<std::byte> writable_bytes_of(torch::Tensor& tensor) {
  TORCH_INTERNAL_ASSERT(tensor.device().is_cpu() && tensor.is_contiguous());
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

torch::Tensor read_tensor(const formats::SafetensorsReader& file, const formats::SafetensorsEntry& entry,
                          ErrorKind kind) {
  const auto dtype = scalar_type_of(entry.dtype, file.where() + ": tensor '" + entry.name + "'", kind);
  torch::Tensor tensor = torch::empty(entry.shape, torch::TensorOptions(dtype));
  file.read(entry, writable_bytes_of(tensor));
  return tensor;
}

NamedTensors read_tensors(const std::string& path, ErrorKind kind) {
  const auto reader = formats::SafetensorsReader::open(path, kind);
  NamedTensors tensors;
  for (const auto& entry : reader.entries()) tensors.emplace(entry.name, read_tensor(reader, entry, kind));
  return tensors;
}

void write_tensors(const std::string& path, const NamedTensors& tensors, const formats::Metadata& metadata,
                   ErrorKind kind, formats::Sync sync) {
  std::vector<formats::TensorDeclaration> declarations;
  for (const auto& [name, tensor] : tensors)
    declarations.push_back({name, dtype_of(tensor, path + ": tensor '" + name + "'", kind), tensor.sizes().vec()});
  const std::string fresh = path + ".tmp-" + std::to_string(::getpid());
  try {
    formats::SafetensorsWriter writer(fresh, std::move(declarations), metadata, kind);
    for (const std::string& name : writer.order()) {
      const torch::Tensor host = tensors.at(name).detach().to(torch::kCPU).contiguous();
      writer.write(name, bytes_of(host));
    }
    writer.finish(sync);
    if (std::rename(fresh.c_str(), path.c_str()) != 0)
      throw Error(kind, path, std::string("cannot be replaced: ") + std::strerror(errno));
  } catch (...) {
    ::unlink(fresh.c_str());
    throw;
  }
}

}  // namespace ditto
