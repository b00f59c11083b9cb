#include <ditto/nn/maps.h>

#include <algorithm>
#include <numeric>

#include <torch/types.h>

#include <ditto/error.h>

#include "nn/nodes_of_dim.h"

namespace ditto {

using torch::Tensor;

namespace {

int64_t product(at::IntArrayRef numbers) { return c10::multiply_integers(numbers); }

std::string of_sides(const char* what, int64_t sides) {
  return std::string(what) + " of " + std::to_string(sides) + (sides == 1 ? " side" : " sides");
}
std::string name_of(int64_t sides) { return of_sides("convolution", sides); }

int64_t least(const std::vector<int64_t>& numbers) { return *std::min_element(numbers.begin(), numbers.end()); }

std::vector<int64_t> for_all(const std::vector<int64_t>& numbers, int64_t sides, const std::string& where,
                             const char* what) {
  if (numbers.size() == 1) return std::vector<int64_t>(static_cast<size_t>(sides), numbers[0]);
  if (static_cast<int64_t>(numbers.size()) == sides) return numbers;
  throw Error(ErrorKind::plugin, where, "has a " + std::string(what) + " of " + c10::str(numbers),
              "expected one number, or one for each side");
}
std::vector<int64_t> for_all(const std::vector<int64_t>& numbers, int64_t sides, const char* what) {
  return for_all(numbers, sides, name_of(sides), what);
}

// [out, in, kernel…]
std::vector<int64_t> weight_shape(const ConvShape& shape, int64_t sides) {
  auto sizes = for_all(shape.kernel, sides, "kernel");
  if (shape.in < 1 || shape.out < 1 || least(sizes) < 1)
    throw Error(ErrorKind::plugin, name_of(sides),
                c10::str("has ", shape.in, " input channels, ", shape.out, " output channels and a kernel of ", sizes),
                "expected at least 1 of each");
  sizes.insert(sizes.begin(), {shape.out, shape.in});
  return sizes;
}

constexpr int64_t kPicture = 2;   // sides
constexpr int64_t kChannels = 1;  // the dim of maps
constexpr const char* kTransposed = "transposed convolution";

// Of weights as large as a linear map's of so many numbers (Glorot and Bengio, 2010).
Init xavier(const ConvShape& shape, int64_t sides) {
  const int64_t places = product(for_all(shape.kernel, sides, "kernel"));
  return Init::xavier(shape.in * places, shape.out * places);
}

// Of numbers of channels, [C] or [B, C], one for each of a map's places.
Tensor of_channels(const Tensor& numbers, int64_t dims) {
  auto sizes = numbers.sizes().vec();
  if (sizes.size() == 1) sizes.insert(sizes.begin(), 1);
  sizes.resize(static_cast<size_t>(dims), 1);
  return numbers.view(sizes);
}

// Norms and what adds numbers keep a map as it lies, so that between convolutions nothing is moved.
Tensor laid(const Tensor& map, const Context& ctx) {
  const bool is_video = map.dim() == 5;
  if (ctx.maps == at::MemoryFormat::Preserve || (map.dim() != 4 && !is_video)) return map;
  const bool is_last = ctx.maps == at::MemoryFormat::ChannelsLast;
  return map.contiguous(is_last && is_video ? at::MemoryFormat::ChannelsLast3d : ctx.maps);
}

void check(const AfterNorm& then, const Tensor& map) {
  const auto fits = [&](const Tensor& rows) { return rows.defined() && rows.sizes() == map.sizes().slice(0, 2); };
  if ((!then.shift.defined() && !then.scale.defined()) || (fits(then.shift) && fits(then.scale))) return;
  const auto text = [](const Tensor& rows) { return rows.defined() ? c10::str(rows.sizes()) : "none"; };
  throw Error(ErrorKind::plugin, "group norm",
              "is given a shift of " + text(then.shift) + " and a scale of " + text(then.scale) + ", for " +
                  c10::str(map.sizes()),
              "give it both, as [B, C] of the channels that are here, or none");
}

// One number for each side of a map [B, C, …], at least 1 of each.
std::vector<int64_t> of_each_side(const Tensor& map, const std::vector<int64_t>& numbers, const char* layer,
                                  const char* what) {
  const int64_t sides = map.dim() - 2;
  if (sides < 1) throw Error(ErrorKind::plugin, layer, "is given " + c10::str(map.sizes()), "give it maps [B, C, ...]");
  const auto where = of_sides(layer, sides);
  const auto all = for_all(numbers, sides, where, what);
  if (least(all) < 1)
    throw Error(ErrorKind::plugin, where, c10::str("has ", what, "s of ", all), "expected at least 1 of each");
  return all;
}

// x of the channels that are here, with `op`(x, weight, bias, leaves) for each node of them.
template <class Op>
Tensor by_nodes(const Op& op, const Tensor& x, const Tensor& weight, const Tensor& bias, const SumLeaves& leaves,
                const CutLayer::Nodes& nodes, int64_t dim_of_inputs, bool sums, Context& ctx) {
  Tensors ys;
  if (!sums) {
    const NodesOfDim dim(leaves.out, nodes.leaves);
    const auto xs = nodes.copies(x), maps = dim.split(weight, 1 - dim_of_inputs), rows = dim.split(bias, 0);
    for (size_t i = 0; i < xs.size(); ++i) ys.push_back(op(xs[i], maps[i], rows[i], SumLeaves{{}, dim.leaves(i)}));
    return dim.join(ys, kChannels);
  }
  const NodesOfDim dim(leaves.in, nodes.leaves);
  const auto xs = dim.split(x, kChannels), maps = dim.split(weight, dim_of_inputs);
  for (size_t i = 0; i < xs.size(); ++i) ys.push_back(op(xs[i], maps[i], Tensor(), SumLeaves{dim.leaves(i), {}}));
  // What is added once comes after the sum. Places are a row's tokens: its gradient is then summed as the op sums it.
  const Tensor places = nodes.sum(ys).movedim(kChannels, -1);
  return ctx.ops.of_condition().add_row(places, bias).movedim(-1, kChannels);
}

}  // namespace

Convolution::Convolution(int64_t sides, const ConvShape& shape, const Split& split)
    : Convolution(sides, shape, split, xavier(shape, sides)) {}

Convolution::Convolution(int64_t sides, const ConvShape& shape, const Split& split, Init init)
    : weight(parameter("weight", weight_shape(shape, sides), init)),
      bias(parameter("bias", {shape.out}, Init::zeros())),
      stride_(for_all(shape.stride, sides, "stride")),
      before_(for_all(shape.padding.empty() ? shape.kernel : shape.padding, sides, "padding")),
      sums_(split.kind == Split::Kind::rows),
      leaves_(SumLeaves::of(split, shape.in, shape.out)) {
  if (shape.padding.empty())
    for (int64_t& places : before_) places /= 2;
  after_ = shape.padding_after.empty() ? before_ : for_all(shape.padding_after, sides, "padding after");
  if (least(stride_) < 1 || least(before_) < 0 || least(after_) < 0)
    throw Error(ErrorKind::plugin, name_of(sides),
                c10::str("has a stride of ", stride_, " and a padding of ", before_, " before and ", after_, " after"),
                "expected a stride of at least 1 and a padding of at least 0");
  declare(split, {name_of(sides), "input channels", "output channels", 1});
}
Convolution::~Convolution() = default;
Conv1d::~Conv1d() = default;
Conv2d::~Conv2d() = default;
Conv3d::~Conv3d() = default;

bool Convolution::token_local() const {
  const auto is = [](const std::vector<int64_t>& numbers, int64_t number) {
    return std::all_of(numbers.begin(), numbers.end(), [&](int64_t n) { return n == number; });
  };
  return product(weight.leaf().sizes().slice(2)) == 1 && is(stride_, 1) && is(before_, 0) && is(after_, 0);
}

std::optional<int64_t> Convolution::leaves_to_cut() const { return leaves_that_are_cut(leaves_, sums_); }

Tensor Convolution::forward(const Tensor& x, Context& ctx) {
  const Tensor in = laid(enter(x).to(ctx.compute), ctx), w = weight(ctx);
  if (in.dim() != w.dim() || in.size(1) != w.size(1))
    throw Error(ErrorKind::plugin, name_of(w.dim() - 2),
                "is given " + c10::str(in.sizes()) + ", with a weight of " + c10::str(w.sizes()) + " here",
                "give it maps [B, C, ...]; where what is before it is cut by channels, it is Split::rows()");
  for (size_t side = 0; side < stride_.size(); ++side)
    if (in.sizes()[side + 2] + before_[side] + after_[side] < w.sizes()[side + 2])
      throw Error(ErrorKind::plugin, name_of(w.dim() - 2),
                  c10::str("makes no place of ", in.sizes(), ", with a kernel of ", w.sizes().slice(2),
                           " and a padding of ", before_, " before and ", after_, " after"),
                  "give it larger maps, a smaller kernel, or more padding");
  const bool adds_later = after && sums_ && !nodes;
  const auto op = [&](const Tensor& map, const Tensor& part, const Tensor& row, const SumLeaves& leaves) {
    return ctx.ops.conv(map, part, row, stride_, before_, after_, leaves);
  };
  const Tensor y = nodes ? by_nodes(op, in, w, bias(ctx), leaves_, *nodes, 1, sums_, ctx)
                         : op(in, w, adds_later ? Tensor() : bias(ctx), leaves_);
  ctx.count("conv", 2 * static_cast<double>(y.numel()) * static_cast<double>(product(w.sizes().slice(1))));
  return adds_later ? after(y) + of_channels(bias(ctx), y.dim()) : leave(y);
}

ConvTransposed2d::ConvTransposed2d(const ConvShape& shape, const Split& split)
    : stride_(for_all(shape.stride, kPicture, kTransposed, "stride")),
      padding_(for_all(shape.padding.empty() ? shape.kernel : shape.padding, kPicture, kTransposed, "padding")),
      sums_(split.kind == Split::Kind::rows),
      leaves_(SumLeaves::of(split, shape.in, shape.out)) {
  auto sizes = weight_shape(shape, kPicture);
  std::swap(sizes[0], sizes[1]);
  weight = parameter("weight", sizes, xavier(shape, kPicture));
  bias = parameter("bias", {shape.out}, Init::zeros());
  if (shape.padding.empty())
    for (int64_t& places : padding_) places /= 2;
  if (least(stride_) < 1 || least(padding_) < 0 || !shape.padding_after.empty())
    throw Error(ErrorKind::plugin, kTransposed,
                c10::str("has a stride of ", stride_, " and a padding of ", padding_, ", or another one after a side"),
                "expected a stride of at least 1 and one padding for both ends, of at least 0");
  declare(split, {kTransposed, "input channels", "output channels", 1, 0});
}
ConvTransposed2d::~ConvTransposed2d() = default;

std::optional<int64_t> ConvTransposed2d::leaves_to_cut() const { return leaves_that_are_cut(leaves_, sums_); }

Tensor ConvTransposed2d::forward(const Tensor& x, Context& ctx) {
  const Tensor in = laid(enter(x).to(ctx.compute), ctx), w = weight(ctx);
  if (in.dim() != w.dim() || in.size(1) != w.size(0))
    throw Error(ErrorKind::plugin, kTransposed,
                "is given " + c10::str(in.sizes()) + ", with a weight of " + c10::str(w.sizes()) + " here",
                "give it pictures [B, C, H, W]; where what is before it is cut by channels, it is Split::rows()");
  for (size_t side = 0; side < stride_.size(); ++side)
    if ((in.sizes()[side + 2] - 1) * stride_[side] + w.sizes()[side + 2] - 2 * padding_[side] < 1)
      throw Error(ErrorKind::plugin, kTransposed,
                  c10::str("makes no place of ", in.sizes(), ", with a padding of ", padding_),
                  "give it larger pictures, or less padding");
  const bool adds_later = after && sums_ && !nodes;
  const auto op = [&](const Tensor& map, const Tensor& part, const Tensor& row, const SumLeaves& leaves) {
    return ctx.ops.conv_transposed(map, part, row, stride_, padding_, leaves);
  };
  const Tensor y = nodes ? by_nodes(op, in, w, bias(ctx), leaves_, *nodes, 0, sums_, ctx)
                         : op(in, w, adds_later ? Tensor() : bias(ctx), leaves_);
  ctx.count("conv", 2 * static_cast<double>(in.numel()) * static_cast<double>(product(w.sizes().slice(1))));
  return adds_later ? after(y) + of_channels(bias(ctx), y.dim()) : leave(y);
}

GroupNorm::GroupNorm(int64_t groups, int64_t channels, const Split& split, double eps)
    : weight(parameter("weight", {channels}, Init::ones())),
      bias(parameter("bias", {channels}, Init::zeros())),
      eps_(eps) {
  const std::string layer = "group norm";
  if (groups < 1 || channels % groups != 0)
    throw Error(ErrorKind::plugin, layer, c10::str("has ", groups, " groups of ", channels, " channels"),
                "expected a number of groups that divides them");
  of_group_ = channels / groups;
  if (split.kind == Split::Kind::none) return;
  if (split.kind != Split::Kind::along)
    throw Error(ErrorKind::plugin, layer, "has a Split by columns or rows",
                "its outputs are cut as its inputs are: Split::along, or not at all");
  const int64_t unit = std::lcm(of_group_, split.unit);
  LayerCut cut{{{"weight", 0, split.parts, unit}, {"bias", 0, split.parts, unit}}, "groups"};
  if (unit != of_group_) cut.units = c10::str("runs of ", unit / of_group_, " groups");
  cut.input = cut.output = LayerCut::Values::cut;
  cut.channels = 1;
  declare(Axis::tensor, std::move(cut), layer);
}
GroupNorm::~GroupNorm() = default;

// Mean and deviation are over all of a map's places.
bool GroupNorm::token_local() const { return false; }

Tensor GroupNorm::forward(const Tensor& x, Context& ctx, const AfterNorm& then) {
  const Tensor in = enter(x).to(ctx.compute), w = weight(ctx);
  if (in.dim() < 2 || in.size(1) != w.size(0))
    throw Error(
        ErrorKind::plugin, "group norm",
        "is given " + c10::str(in.sizes()) + ", with weights of " + std::to_string(w.size(0)) + " channels here",
        "give it [B, C, ...]; where what is before it is cut by channels, it is Split::along(...)");
  const int64_t groups = w.size(0) / of_group_;
  if (!before && !after) {
    check(then, in);
    return ctx.ops.group_norm(in, groups, w, bias(ctx), eps_, then);
  }
  // Something stands between the two, or other channels are normalised than leave.
  Tensor y = leave(ctx.ops.group_norm(in, groups, w, bias(ctx), eps_));
  check(then, y);
  if (then.scale.defined()) y = y * (1 + of_channels(then.scale, y.dim())) + of_channels(then.shift, y.dim());
  return then.silu ? ctx.ops.silu(y) : y;
}

Tensor upsampled(const Tensor& map, Context& ctx, const std::vector<int64_t>& times) {
  return ctx.ops.resample(map, Resample::nearest, of_each_side(map, times, "up-sampling", "factor"));
}

Tensor downsampled(const Tensor& map, Context& ctx, const std::vector<int64_t>& times) {
  const auto factors = of_each_side(map, times, "down-sampling", "factor");
  for (size_t side = 0; side < factors.size(); ++side)
    if (map.sizes()[side + 2] % factors[side] != 0)
      throw Error(ErrorKind::plugin, of_sides("down-sampling", map.dim() - 2),
                  c10::str("is given ", map.sizes(), ", with factors of ", factors),
                  "give it maps whose sides the factors divide");
  return ctx.ops.resample(map, Resample::mean, factors);
}

Tensor bicubic(const Tensor& map, Context& ctx, const std::vector<int64_t>& sides) {
  if (map.dim() != 4 || map.numel() == 0 || sides.size() != 2 || least(sides) < 1)
    throw Error(ErrorKind::plugin, "bicubic resampling",
                c10::str("is given ", map.sizes(), ", to have sides of ", sides),
                "give it pictures [B, C, rows, columns], and the rows and columns that come out, at least 1 of each");
  return ctx.ops.resample(map, Resample::bicubic, sides);
}

Tensor add_channels(const Tensor& map, const Tensor& rows_BC, Context& ctx) {
  if (map.dim() < 2 || rows_BC.sizes() != map.sizes().slice(0, 2))
    throw Error(ErrorKind::plugin, "adding to channels",
                c10::str("is given rows ", rows_BC.sizes(), " for a map ", map.sizes()),
                "give it [B, C] of the channels that are here");
  return ctx.ops.add_channels(map, rows_BC);
}

}  // namespace ditto
