// Layers over maps, for UNets and autoencoders: fields of the stream without tokens (Stream::extra), or what a block
// makes of its tokens. ditto.h does not include it.
//
// Legend: B samples, C channels, F frames, H rows, W columns, L places of a line.
#pragma once

#include <optional>
#include <vector>

#include <ditto/context.h>
#include <ditto/nn.h>

namespace ditto {

// One number for all of a map's sides, or one for each.
struct DITTO_API ConvShape {
  int64_t in, out;  // channels
  std::vector<int64_t> kernel{3};
  std::vector<int64_t> stride{1};
  std::vector<int64_t> padding{};        // zeros at both ends; none: kernel / 2
  std::vector<int64_t> padding_after{};  // zeros after the last place, where they are others than before the first
};

// What Conv1d, Conv2d and Conv3d share. Weight [out, in, kernel…], xavier, and bias [out], zero. Along tensor it is cut
// by channels: Split::columns of output channels, Split::rows of input channels.
class DITTO_API Convolution : public CutLayer {
 public:
  ~Convolution() override;
  torch::Tensor forward(const torch::Tensor& x, Context& ctx);
  bool token_local() const override;  // where the kernel is one place, without padding
  std::optional<int64_t> leaves_to_cut() const override;

  Parameter weight, bias;

 protected:
  Convolution(int64_t sides, const ConvShape& shape, const Split& split);
  Convolution(int64_t sides, const ConvShape& shape, const Split& split, Init init);

 private:
  std::vector<int64_t> stride_, before_, after_;
  bool sums_;         // its outputs are terms of a sum
  SumLeaves leaves_;  // of channels, each with all of its kernel's places
};

// Over lines [B, C, L].
class DITTO_API Conv1d : public Convolution {
 public:
  explicit Conv1d(const ConvShape& shape, const Split& split = {}) : Convolution(1, shape, split) {}
  Conv1d(const ConvShape& shape, const Split& split, Init weight) : Convolution(1, shape, split, weight) {}
  ~Conv1d() override;
};

// Over pictures [B, C, H, W].
class DITTO_API Conv2d : public Convolution {
 public:
  explicit Conv2d(const ConvShape& shape, const Split& split = {}) : Convolution(2, shape, split) {}
  Conv2d(const ConvShape& shape, const Split& split, Init weight) : Convolution(2, shape, split, weight) {}
  ~Conv2d() override;
};

// Over videos [B, C, F, H, W].
class DITTO_API Conv3d : public Convolution {
 public:
  explicit Conv3d(const ConvShape& shape, const Split& split = {}) : Convolution(3, shape, split) {}
  Conv3d(const ConvShape& shape, const Split& split, Init weight) : Convolution(3, shape, split, weight) {}
  ~Conv3d() override;
};

// A transposed convolution over pictures: a side of n places becomes (n - 1) stride + kernel - 2 padding, the map that
// Conv2d of this shape makes n of. Weight [in, out, kernel…], xavier, and bias [out], zero. Cut as convolutions are.
class DITTO_API ConvTransposed2d : public CutLayer {
 public:
  explicit ConvTransposed2d(const ConvShape& shape, const Split& split = {});
  ~ConvTransposed2d() override;
  torch::Tensor forward(const torch::Tensor& x, Context& ctx);
  bool token_local() const override { return false; }
  std::optional<int64_t> leaves_to_cut() const override;

  Parameter weight, bias;

 private:
  std::vector<int64_t> stride_, padding_;
  bool sums_;  // its outputs are terms of a sum
  SumLeaves leaves_;
};

// GroupNorm (arXiv:1803.08494) of x [B, C, …] with weight and bias [C]. Where its channels are cut, because those of
// the layer before it are, it says Split::along and is cut by whole groups: a rank then has whole groups of them.
class DITTO_API GroupNorm : public CutLayer {
 public:
  GroupNorm(int64_t groups, int64_t channels, const Split& split = {}, double eps = 1e-5);
  ~GroupNorm() override;
  // `then`: of the channels that are here.
  torch::Tensor forward(const torch::Tensor& x, Context& ctx, const AfterNorm& then = {});
  bool token_local() const override;
  std::optional<int64_t> leaves_to_cut() const override { return 0; }  // whole groups: no rank has part of a sum

  Parameter weight, bias;

 private:
  int64_t of_group_;  // channels
  double eps_;
};

// Every place of a map [B, C, …] several times: `times` for all of its sides, or one number for each (nearest
// neighbours). The gradient is a sum of a place's copies, in their order.
DITTO_API torch::Tensor upsampled(const torch::Tensor& map, Context& ctx, const std::vector<int64_t>& times = {2});
// The mean of so many places of each side, which these numbers divide.
DITTO_API torch::Tensor downsampled(const torch::Tensor& map, Context& ctx, const std::vector<int64_t>& times = {2});
// A picture of these sides [rows, columns], by cubic convolution (R. Keys, 1981) with a = -0.75, corners not aligned,
// and no smoothing before it is made smaller: LibTorch's "bicubic".
DITTO_API torch::Tensor bicubic(const torch::Tensor& map, Context& ctx, const std::vector<int64_t>& sides);
// A number [B, C] for all places of a channel, added to a map [B, C, …].
DITTO_API torch::Tensor add_channels(const torch::Tensor& map, const torch::Tensor& rows_BC, Context& ctx);

}  // namespace ditto
