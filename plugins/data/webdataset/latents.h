// Tensors beside pictures, as NeMo's scripts and others keep them: latents, and texts that were embedded.
//
// Legend: C channels, T frames, H rows, W columns; S tokens, E their width.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <torch/types.h>

namespace webdataset {

using Shape = std::vector<int64_t>;

// [C, H, W] or [C, T, H, W] as float32; further dims of 1 in front are left out. `shape` is what it should be, -1 for
// any; empty: either. Throws Error(data) for other tensors, and, as NeMo leaves them out, for those with numbers that
// are not finite or beyond 1000 in size.
torch::Tensor latent_in(std::span<const std::byte> member, const Shape& shape, const std::string& where);
Shape latent_shape(std::span<const std::byte> member, const Shape& shape, const std::string& where);

// [S, E] as float32, at most `tokens` of them (0: all); with a `key` that of {key: {"encodings": [S, E]}}. Throws
// Error(data) for another width and for numbers that are not finite.
torch::Tensor text_in(std::span<const std::byte> member, const std::string& key, int64_t width, int64_t tokens,
                      const std::string& where);
int64_t text_width_of(std::span<const std::byte> member, const std::string& key, const std::string& where);

// Shapes of samples, each found once: a number a sample, and each different shape once.
class Shapes {
 public:
  Shape of(int64_t index, const std::function<Shape()>& find) const;

 private:
  mutable std::mutex mutex_;
  mutable std::map<Shape, std::int32_t> numbers_;
  mutable std::vector<Shape> shapes_;
  mutable std::unordered_map<int64_t, std::int32_t> known_;
};

}  // namespace webdataset
