#include <ditto/nn/maps.h>

#include <algorithm>
#include <numeric>

#include <torch/autograd.h>
#include <torch/types.h>

#include <ditto/error.h>

namespace ditto {

using torch::Tensor;

namespace {

int64_t product(at::IntArrayRef numbers) { return c10::multiply_integers(numbers); }

std::string of_sides(const char* what, int64_t sides) {
  return std::string(what) + " of " + std::to_string(sides) + (sides == 1 ? " side" : " sides");
}
std::string name_of(int64_t sides) { return of_sides("convolution", sides); }

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

std::vector<int64_t> weight_shape(const ConvShape& shape, int64_t sides) {
  auto sizes = for_all(shape.kernel, sides, "kernel");
  if (shape.in < 1 || shape.out < 1 || *std::min_element(sizes.begin(), sizes.end()) < 1)
    throw Error(ErrorKind::plugin, name_of(sides),
                c10::str("has ", shape.in, " input channels, ", shape.out, " output channels and a kernel of ", sizes),
                "expected at least 1 of each");
  sizes.insert(sizes.begin(), {shape.out, shape.in});
  return sizes;
}

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

// LibTorch's own take several times as long, forward or back.
struct Upsampled : torch::autograd::Function<Upsampled> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& map, const std::vector<int64_t>& times) {
    ctx->saved_data["times"] = times;
    auto places = map.sizes().vec(), copies = places, sizes = places;
    for (size_t side = times.size(); side-- > 0;) {  // behind each side, its places' copies
      const auto at = static_cast<int64_t>(side) + 3;
      places.insert(places.begin() + at, 1), copies.insert(copies.begin() + at, times[side]);
      sizes[side + 2] *= times[side];
    }
    return map.reshape(places).expand(copies).reshape(sizes);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto times = ctx->saved_data["times"].toIntVector();
    Tensor sum = grads[0];
    for (size_t side = 0; side < times.size(); ++side) {
      const auto dim = static_cast<int64_t>(side) + 2;
      const Tensor all = sum;
      sum = all.slice(dim, 0, std::nullopt, times[side]);
      for (int64_t i = 1; i < times[side]; ++i) sum = sum + all.slice(dim, i, std::nullopt, times[side]);
    }
    return {sum, Tensor()};
  }
};

}  // namespace

Convolution::Convolution(int64_t sides, const ConvShape& shape, const Split& split)
    : Convolution(sides, shape, split, xavier(shape, sides)) {}

Convolution::Convolution(int64_t sides, const ConvShape& shape, const Split& split, Init init)
    : weight(parameter("weight", weight_shape(shape, sides), init)),
      bias(parameter("bias", {shape.out}, Init::zeros())),
      stride_(for_all(shape.stride, sides, "stride")),
      before_(for_all(shape.padding.empty() ? shape.kernel : shape.padding, sides, "padding")),
      sums_(split.kind == Split::Kind::rows) {
  if (shape.padding.empty())
    for (int64_t& places : before_) places /= 2;
  after_ = shape.padding_after.empty() ? before_ : for_all(shape.padding_after, sides, "padding after");
  const auto least = [](const std::vector<int64_t>& numbers) {
    return *std::min_element(numbers.begin(), numbers.end());
  };
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

Tensor Convolution::forward(const Tensor& x, Context& ctx) {
  ctx.refuse_under_one("a convolution");
  const Tensor in = laid(enter(x).to(ctx.compute), ctx), w = weight(ctx);
  if (in.dim() != w.dim() || in.size(1) != w.size(1))
    throw Error(ErrorKind::plugin, name_of(w.dim() - 2),
                "is given " + c10::str(in.sizes()) + ", with a weight of " + c10::str(w.sizes()) + " here",
                "give it maps [B, C, ...]; where what is before it is cut by channels, it is Split::rows()");
  const bool adds_later = after && sums_;
  const Tensor y = ctx.ops.conv(in, w, adds_later ? Tensor() : bias(ctx), stride_, before_, after_);
  ctx.count("conv", 2 * static_cast<double>(y.numel()) * static_cast<double>(product(w.sizes().slice(1))));
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
  ctx.refuse_under_one("a norm of groups of channels");
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

Tensor upsampled(const Tensor& map, const std::vector<int64_t>& times) {
  const int64_t sides = map.dim() - 2;
  if (sides < 1)
    throw Error(ErrorKind::plugin, "up-sampling", "is given " + c10::str(map.sizes()), "give it maps [B, C, ...]");
  const auto where = of_sides("up-sampling", sides);
  const auto of_all = for_all(times, sides, where, "factor");
  if (*std::min_element(of_all.begin(), of_all.end()) < 1)
    throw Error(ErrorKind::plugin, where, c10::str("has factors of ", of_all), "expected at least 1 of each");
  return Upsampled::apply(map, of_all);
}

}  // namespace ditto
