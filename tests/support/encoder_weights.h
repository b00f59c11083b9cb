// A file of weights for an encoder, by its own names.
#pragma once

#include <string>
#include <vector>

#include <torch/types.h>

#include <ditto/encoder.h>

#include "core/formats/tensor/safetensors.h"

namespace ditto::test {

// Small numbers, none of them zero, the same on every machine.
inline void write_some_weights(const Encoder& encoder, const std::string& path) {
  std::vector<formats::TensorDeclaration> tensors;
  for (const auto& item : encoder.named_parameters())
    tensors.push_back({item.key(), formats::Dtype::f32, item.value().sizes().vec()});
  formats::SafetensorsWriter writer(path, tensors);
  for (const auto& item : encoder.named_parameters()) {
    const auto numbers = torch::arange(item.value().numel(), torch::kFloat).remainder(7).sub(2.5).div(9).contiguous();
    writer.write(item.key(), {static_cast<const std::byte*>(numbers.const_data_ptr()), numbers.nbytes()});
  }
  writer.finish();
}

}  // namespace ditto::test
