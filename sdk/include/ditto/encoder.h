// Between data and what a model trains on: pixels and latents, text and embeddings.
#pragma once

#include <string>
#include <vector>

#include <ditto/batch.h>
#include <ditto/plugin.h>

namespace ditto {

class DITTO_API Encoder {
 public:
  static constexpr const char* kKind = "encoder";
  struct Needs {
    std::vector<TensorSpec> data;  // what the source gives
  };
  virtual ~Encoder();
  // Replaces what it encodes: an image encoder turns "image" ([B, C, H, W], -1 … 1) into "clean".
  virtual Batch encode(Batch batch) const = 0;
  // An image encoder's way back: "clean" -> picture in -1 … 1.
  virtual torch::Tensor decode(const torch::Tensor& clean) const = 0;
  virtual std::vector<TensorSpec> spec() const = 0;  // what it makes
  // Equal fingerprints encode alike: the key of a cache.
  virtual std::string fingerprint() const = 0;
};

}  // namespace ditto
