#include <ditto/upload.h>

namespace ditto {

using torch::Tensor;

namespace {

constexpr int64_t kAligned = 256;  // bytes, as a device's own allocations are

struct Piece {
  size_t of;  // the list
  int64_t begin, bytes;

  Tensor in(const Tensor& block, const Tensor& like) const {
    return block.narrow(0, begin, bytes).view(like.scalar_type()).view(like.sizes());
  }
};

}  // namespace

std::vector<Tensor> uploaded(const std::vector<Tensor>& host, torch::Device device) {
  auto list = host;
  if (device.is_cpu() || device.is_meta()) {
    for (auto& tensor : list)
      if (tensor.defined()) tensor = tensor.to(device);
    return list;
  }
  std::vector<Piece> pieces;
  int64_t size = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    if (!list[i].defined()) continue;
    if (!list[i].is_cpu()) {
      list[i] = list[i].to(device);
      continue;
    }
    pieces.push_back({i, size, static_cast<int64_t>(list[i].nbytes())});
    size = (size + pieces.back().bytes + kAligned - 1) / kAligned * kAligned;
  }
  if (pieces.empty()) return list;
  const auto block = torch::empty({size}, torch::TensorOptions(torch::kByte).pinned_memory(true));
  for (const auto& piece : pieces) piece.in(block, list[piece.of]).copy_(list[piece.of]);
  const auto there = block.to(device, /*non_blocking=*/true);
  for (const auto& piece : pieces) list[piece.of] = piece.in(there, list[piece.of]);
  return list;
}

Tensor uploaded(const Tensor& host, torch::Device device) { return uploaded(std::vector<Tensor>{host}, device)[0]; }

}  // namespace ditto
