#include "core/encode/members.h"

#include <algorithm>
#include <cstring>

#include <torch/types.h>

#include "core/data/encoded_set.h"
#include "core/formats/tensor/saved_tensor.h"

namespace ditto {

using torch::Tensor;

namespace {

// Up to the last place that shows something.
int64_t shown_length(const Tensor& mask_S) {
  const auto* shown = mask_S.const_data_ptr<bool>();
  int64_t length = mask_S.size(0);
  while (length > 0 && !shown[length - 1]) --length;
  return length;
}

formats::SavedTensor as_saved(const Tensor& tensor) {
  const auto numbers = tensor.contiguous();
  const auto bytes = bytes_of(numbers);
  return {dtype_of(numbers, "an encoded sample", ErrorKind::data), numbers.sizes().vec(), {bytes.begin(), bytes.end()}};
}

}  // namespace

Tensor own_row(const Batch& batch, const TensorSpec& spec, int64_t row) {
  auto own = batch.at(spec.name)[row].contiguous();
  if (spec.shape.empty() || spec.shape.front() != -1) return own;
  if (own.scalar_type() == torch::kBool && own.dim() == 1) return own.narrow(0, 0, shown_length(own)).contiguous();
  const auto known = batch.lengths.find(spec.name);
  if (known == batch.lengths.end()) return own;
  const auto length = std::min(known->second.at(static_cast<size_t>(row)), own.size(0));
  return own.narrow(0, 0, length).contiguous();
}

std::string safetensors_member(const NamedTensors& tensors, formats::Metadata metadata) {
  const std::string where = "an encoded sample";
  std::vector<formats::TensorDeclaration> declared;
  size_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    declared.push_back({name, dtype_of(tensor, where, ErrorKind::data), tensor.sizes().vec()});
    bytes += tensor.nbytes();
  }
  metadata[EncodedSet::kCrc] = EncodedSet::crc_of({}, {});
  auto file = formats::safetensors_header(declared, metadata);  // as long as with the crc
  const auto header = file.size();
  file.resize(header + bytes);
  const auto reader = formats::SafetensorsReader::parse(std::as_bytes(std::span(file)).first(header), file.size(),
                                                        where, ErrorKind::data);
  for (const auto& entry : reader.entries()) {
    const auto numbers = bytes_of(tensors.at(entry.name));
    if (!numbers.empty()) std::memcpy(file.data() + entry.offset, numbers.data(), numbers.size());
  }
  metadata[EncodedSet::kCrc] = EncodedSet::crc_of(std::as_bytes(std::span(file)).subspan(header), metadata);
  const auto said = formats::safetensors_header(declared, metadata);
  std::copy(said.begin(), said.end(), file.begin());
  return file;
}

std::string torch_member(const Tensor& tensor) { return formats::torch_file(as_saved(tensor)); }
std::string numpy_member(const Tensor& tensor) { return formats::numpy_pickle(as_saved(tensor)); }

}  // namespace ditto
