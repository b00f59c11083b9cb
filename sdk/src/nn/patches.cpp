#include <ditto/nn/patches.h>

#include <algorithm>

#include <torch/types.h>

#include <ditto/nn/tables.h>

#include "nn/picture_grid.h"

namespace ditto {

using torch::Tensor;

namespace {

// Checked before the map is made.
int64_t channels_of(const std::string& model, const std::vector<int64_t>& x, int64_t patch, int64_t frames) {
  const size_t dims = x.size();
  const bool is_video = dims == 4;
  if (dims != 3 && (frames == 0 || dims != 4))
    throw Error(ErrorKind::config, "model \"" + model + "\"",
                std::string("takes pictures [C, H, W]") + (frames > 0 ? " or videos [C, F, H, W]" : "") +
                    ", the data has " + std::to_string(dims) + " dims",
                is_video ? "choose a model for video" : "choose data of pictures");
  if (!is_video && frames > 1)
    throw Error(ErrorKind::config, "model.patch_frames",
                "= " + std::to_string(frames) + " is for videos, and the data has pictures",
                "leave it out, or choose data with frames");
  if (is_video) check_patches("model.patch_frames", frames, "the frames,", {x[1]});
  check_patches("model.patch", patch, is_video ? "frames of" : "pictures of", {x[dims - 2], x[dims - 1]});
  return x[0];
}

}  // namespace

Patches::Patches(const std::string& model, const ModelNeeds& needs, int64_t patch, int64_t frames, int64_t width)
    : VideoPatchEmbed(channels_of(model, needs.shape("x"), patch, frames), patch, std::max<int64_t>(frames, 1), width),
      x_(needs.shape("x")),
      patch_(patch),
      frames_(std::max<int64_t>(frames, 1)),
      width_(width) {}
Patches::~Patches() = default;

Tensor Patches::forward(const Tensor& x, Context& ctx) {
  return VideoPatchEmbed::forward(is_video() ? x : x.unsqueeze(2), ctx);
}

Grid Patches::grid(const Tensor& x) const { return is_video() ? VideoPatchEmbed::grid(x) : picture_grid(x, patch_); }

Tensor Patches::unpatchify(const Tensor& y, const Grid& grid) const {
  const auto x = VideoPatchEmbed::unpatchify(y, grid);
  return is_video() ? x : x.squeeze(2);
}

Grid Patches::grid() const {
  return {is_video() ? x_[1] / frames_ : 1, x_[x_.size() - 2] / patch_, x_[x_.size() - 1] / patch_};
}

int64_t Patches::tokens() const {
  return is_video() ? count_patches({x_[1], x_[2], x_[3]}, {frames_, patch_, patch_})
                    : count_patches({x_[1], x_[2]}, {patch_, patch_});
}

int64_t Patches::outputs(int64_t channels) const { return frames_ * patch_ * patch_ * channels; }

std::vector<int64_t> Patches::convolution() const {
  if (is_video()) return {width_, x_[0], frames_, patch_, patch_};
  return {width_, x_[0], patch_, patch_};
}

Tensor Patches::positions(const Grid& grid) const {
  const auto places = sincos_positions({1, grid.rows, grid.columns}, width_);
  if (!is_video()) return places;
  return (places.unsqueeze(0) + sincos_positions(grid.frames, width_).unsqueeze(1)).flatten(0, 1);
}

Tensor Patches::positions(const Grid& grid, int64_t base, double scale) const {
  const auto places = [&](int64_t n) {
    const auto apart = static_cast<float>(static_cast<double>(n) / static_cast<double>(base > 0 ? base : n));
    std::vector<double> list;
    for (int64_t i = 0; i < n; ++i) list.push_back(static_cast<float>(i) / apart / static_cast<float>(scale));
    return list;
  };
  return sincos_positions(places(grid.rows), places(grid.columns), width_);
}

int64_t Patches::position_numbers() const { return std::max<int64_t>(tokens(), 0) * width_; }

TensorSpec Patches::features() const { return {"features", torch::kFloat, {tokens(), width_}}; }

}  // namespace ditto
