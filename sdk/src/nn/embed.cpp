#include <ditto/nn/embed.h>

#include <utility>

#include <torch/types.h>

#include <ditto/context.h>
#include <ditto/error.h>
#include <ditto/nn/tables.h>

#include "nn/picture_grid.h"

namespace ditto {

using torch::Tensor;

PatchEmbed::PatchEmbed(int64_t channels, int64_t patch, int64_t width)
    : patch_(patch), map_(linear("map", channels * patch * patch, width)) {}
PatchEmbed::~PatchEmbed() = default;

Grid picture_grid(const Tensor& x, int64_t patch) {
  const int64_t h = x.size(-2), w = x.size(-1);
  if (h % patch != 0 || w % patch != 0)
    throw Error(ErrorKind::shape, "patch embedding",
                "a picture of " + std::to_string(h) + " x " + std::to_string(w) + " is not made of patches of " +
                    std::to_string(patch),
                "choose a patch that divides both sides");
  return {1, h / patch, w / patch};
}

Grid PatchEmbed::grid(const Tensor& x_BCHW) const { return picture_grid(x_BCHW, patch_); }

Tensor PatchEmbed::forward(const Tensor& x_BCHW, Context& ctx) {
  const Grid g = grid(x_BCHW);
  const auto patches =
      x_BCHW.unflatten(-1, {g.columns, patch_}).unflatten(-3, {g.rows, patch_});  // B C rows P columns P
  return map_(patches.permute({0, 2, 4, 1, 3, 5}).flatten(3).flatten(1, 2), ctx);
}

Tensor PatchEmbed::unpatchify(const Tensor& y, const Grid& grid) const {
  const auto pixels =
      y.unflatten(-1, {patch_, patch_, -1}).unflatten(1, {grid.rows, grid.columns});  // B rows columns P P C
  return pixels.permute({0, 5, 1, 3, 2, 4}).flatten(4).flatten(2, 3);
}

TimeEmbed::TimeEmbed(int64_t width, const TimeFeatures& features)
    : features_(features),
      in_(linear("in", features.count, width, {}, Init::normal(0.02))),
      out_(linear("out", width, width, {}, Init::normal(0.02))) {}
TimeEmbed::~TimeEmbed() = default;

Tensor TimeEmbed::forward(const Tensor& t_B, Context& ctx) {
  auto features = timestep_features(t_B, features_.count / 2, features_.divisor, ctx);
  if (features_.sine_first) {
    const auto halves = features.chunk(2, -1);
    features = torch::cat({halves[1], halves[0]}, -1);
  }
  return out_(ctx.ops.silu(in_(features, ctx)), ctx);
}

Embedding::Embedding(int64_t rows, int64_t width, Split split, Init init)
    : table(parameter("table", {rows, width}, init)) {
  if (split.kind == Split::Kind::none) return;
  const std::string layer = "embedding";
  if (split.kind != Split::Kind::columns)
    throw Error(ErrorKind::plugin, layer, "has a Split that is not by columns", "a table is cut by its width");
  LayerCut cut{{{"table", 1, split.parts, split.unit}}, "outputs"};
  cut.output = LayerCut::Values::cut;
  cut.gathered = split.gather;
  cut.condition = true;  // an index of any shape: what it is of is not cut
  declare(Axis::tensor, std::move(cut), layer);
}
Embedding::~Embedding() = default;

Tensor Embedding::forward(const Tensor& index, Context& ctx) {
  // Rows are copied as they are; it is the sum of a row's gradients that has no order over tokens.
  if (index.dim() > 1 && torch::GradMode::is_enabled() && table.leaf().requires_grad())
    ctx.refuse_under_one("the gradient of a table that is looked up token by token");
  return leave(table.rows(enter(index).flatten(), ctx).unflatten(0, index.sizes()));
}

LabelEmbed::LabelEmbed(int64_t classes, int64_t width) : Embedding(classes + 1, width), classes_(classes) {}
LabelEmbed::~LabelEmbed() = default;

Tensor LabelEmbed::forward(const Tensor& label_B, Context& ctx) {
  // Of labels on a device nothing is asked, which would wait for it: they come of the host, which has held its own copy
  // against TensorSpec::values, and the device's lookup ends where one is out of range all the same.
  if (label_B.is_cpu() && label_B.numel() &&
      (label_B.min().item<int64_t>() < 0 || label_B.max().item<int64_t>() > classes_))
    throw Error(ErrorKind::data, "label",
                "labels from " + std::to_string(label_B.min().item<int64_t>()) + " to " +
                    std::to_string(label_B.max().item<int64_t>()) + " came, the model has classes 0 to " +
                    std::to_string(classes_ - 1),
                "set data.classes to the data's number of classes");
  return Embedding::forward(label_B, ctx);
}

}  // namespace ditto
