// Maps with other sides. All sums are of single operations in a stated order, on every device:
//
//   nearest  its gradient sums a place's copies, and `mean` its places: side by side, the first side first, each in the
//            order of its places;
//   bicubic  four terms of each place that comes out, columns first, then rows, and its gradient rows first: of each
//            place that came in the terms in the order of the places that came out.
//
// Cubic convolution: R. Keys, 1981 (IEEE Transactions on Acoustics, Speech, and Signal Processing 29).
#include <algorithm>
#include <array>
#include <cmath>

#include <torch/autograd.h>
#include <torch/types.h>

#include <ditto/context.h>
#include <ditto/upload.h>

#include "ops/map_ops.h"

namespace ditto {

using torch::Tensor;

namespace {

using Sides = std::vector<int64_t>;

constexpr int64_t kFirstSide = 2;  // of a map's dims

// LibTorch's own take several times as long, forward or back.
Tensor repeated(const Tensor& map, const Sides& times) {
  auto places = map.sizes().vec(), copies = places, sizes = places;
  for (size_t side = times.size(); side-- > 0;) {  // behind each side, its places' copies
    const auto at = static_cast<int64_t>(side) + kFirstSide + 1;
    places.insert(places.begin() + at, 1), copies.insert(copies.begin() + at, times[side]);
    sizes[side + kFirstSide] *= times[side];
  }
  return map.reshape(places).expand(copies).reshape(sizes);
}

Tensor sum_of_runs(const Tensor& map, const Sides& lengths) {
  Tensor sum = map;
  for (size_t side = 0; side < lengths.size(); ++side) {
    const auto dim = static_cast<int64_t>(side) + kFirstSide;
    const Tensor all = sum;
    sum = all.slice(dim, 0, std::nullopt, lengths[side]);
    for (int64_t i = 1; i < lengths[side]; ++i) sum = sum + all.slice(dim, i, std::nullopt, lengths[side]);
  }
  return sum;
}

struct InRuns : torch::autograd::Function<InRuns> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& map, const Sides& lengths, bool mean) {
    ctx->saved_data["lengths"] = lengths, ctx->saved_data["mean"] = mean;
    return mean ? sum_of_runs(map, lengths) / c10::multiply_integers(lengths) : repeated(map, lengths);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto lengths = ctx->saved_data["lengths"].toIntVector();
    const bool mean = ctx->saved_data["mean"].toBool();
    return {mean ? repeated(grads[0] / c10::multiply_integers(lengths), lengths) : sum_of_runs(grads[0], lengths),
            Tensor(), Tensor()};
  }
};

// A side's places as sums: term k of place i is a weight times a place of another side.
class SideTerms {
 public:
  SideTerms(size_t count, int64_t places)
      : index_(count, std::vector<int64_t>(static_cast<size_t>(places))),
        weight_(count, std::vector<double>(static_cast<size_t>(places))) {}

  // LibTorch's with corners that are not aligned: places beyond an end are those at it.
  static SideTerms cubic(int64_t in, int64_t out) {
    constexpr double a = -0.75;
    const auto near = [](double x) { return ((a + 2) * x - (a + 3)) * x * x + 1; };
    const auto far = [](double x) { return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a; };
    SideTerms terms(4, out);
    for (int64_t i = 0; i < out; ++i) {
      const double place = static_cast<double>(in) / static_cast<double>(out) * (static_cast<double>(i) + 0.5) - 0.5,
                   t = place - std::floor(place);
      const std::array<double, 4> weights{far(t + 1), near(t), near(1 - t), far(2 - t)};
      const auto first = static_cast<int64_t>(std::floor(place)) - 1, last = in - 1;
      for (size_t k = 0; k < weights.size(); ++k)
        terms.put(k, i, std::clamp(first + static_cast<int64_t>(k), int64_t{0}, last), weights[k]);
    }
    return terms;
  }
  // For gradients, of a side of `in` places. A place that is in fewer terms than others has its last one again, of
  // weight 0, and one in none has one near it: what is not finite stays where it is.
  SideTerms turned(int64_t in) const {
    std::vector<std::vector<std::pair<int64_t, double>>> of_place(static_cast<size_t>(in));
    for (size_t i = 0; i < index_[0].size(); ++i)
      for (size_t k = 0; k < index_.size(); ++k)
        of_place[static_cast<size_t>(index_[k][i])].emplace_back(static_cast<int64_t>(i), weight_[k][i]);
    size_t most = 1;
    for (const auto& list : of_place) most = std::max(most, list.size());
    SideTerms back(most, in);
    const auto out = static_cast<int64_t>(index_[0].size());
    for (int64_t i = 0; i < in; ++i) {
      const auto& list = of_place[static_cast<size_t>(i)];
      const int64_t near = list.empty() ? i * out / in : list.back().first;
      for (size_t k = 0; k < most; ++k)
        k < list.size() ? back.put(k, i, list[k].first, list[k].second) : back.put(k, i, near, 0);
    }
    return back;
  }
  Tensor of(const Tensor& x, int64_t dim) const {
    std::vector<Tensor> host;
    for (size_t k = 0; k < index_.size(); ++k) {
      Shape places(static_cast<size_t>(x.dim() - dim), 1);
      places[0] = static_cast<int64_t>(index_[k].size());
      host.push_back(torch::tensor(index_[k]));
      host.push_back(torch::tensor(weight_[k], torch::kDouble).to(x.scalar_type()).view(places));
    }
    const auto lists = uploaded(host, x.device());
    Tensor sum;
    for (size_t k = 0; k < lists.size(); k += 2) {
      const Tensor term = x.index_select(dim, lists[k]) * lists[k + 1];
      sum = sum.defined() ? sum + term : term;
    }
    return sum;
  }

 private:
  using Shape = std::vector<int64_t>;
  void put(size_t term, int64_t place, int64_t from, double factor) {
    index_[term][static_cast<size_t>(place)] = from, weight_[term][static_cast<size_t>(place)] = factor;
  }
  std::vector<std::vector<int64_t>> index_;
  std::vector<std::vector<double>> weight_;
};

struct ByCubics : torch::autograd::Function<ByCubics> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& map, const Sides& sides) {
    ctx->saved_data["in"] = map.sizes().slice(kFirstSide).vec(), ctx->saved_data["out"] = sides;
    const Tensor of_columns = SideTerms::cubic(map.size(3), sides[1]).of(wide(map), 3);
    return SideTerms::cubic(map.size(2), sides[0]).of(of_columns, 2).to(map.scalar_type());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto in = ctx->saved_data["in"].toIntVector(), out = ctx->saved_data["out"].toIntVector();
    const Tensor of_rows = SideTerms::cubic(in[0], out[0]).turned(in[0]).of(wide(grads[0]), 2);
    return {SideTerms::cubic(in[1], out[1]).turned(in[1]).of(of_rows, 3).to(grads[0].scalar_type()), Tensor()};
  }

 private:
  static Tensor wide(const Tensor& x) { return x.scalar_type() == torch::kDouble ? x : x.to(torch::kFloat); }
};

Tensors resampled(const OpInputs& in) {
  const Tensor& map = in.tensor(0);
  const auto& sides = in.list("sides");
  const auto kind = static_cast<Resample>(in.whole("kind"));
  if (kind == Resample::bicubic) return {ByCubics::apply(map, sides)};
  return {InRuns::apply(map, sides, kind == Resample::mean)};
}

}  // namespace

Op resample_op(const MakeScaledNumbers& leaf, const std::function<double(at::ScalarType)>& tolerance) {
  const auto of = [&](const char* name, Resample kind, const Sides& map, const Sides& sides) -> Op::Case {
    return {name, [leaf, kind, map, sides](at::ScalarType dtype) -> OpInputs {
              return {{leaf(map, 1, dtype, 1)}, {{"kind", static_cast<int64_t>(kind)}, {"sides", sides}}};
            }};
  };
  using enum Resample;
  return {"resample",
          "x [B,C,...]; kind 0 (nearest), 1 (mean) or 2 (bicubic, of pictures), sides: of 0 and 1 each side's factor, "
          "of 2 its places that come out -> [B,C,...]",
          {},
          resampled,
          {of("nearest", nearest, {2, 3, 4, 5}, {2, 2}),
           of("nearest, sides of their own", nearest, {2, 5, 3, 7}, {3, 1}),
           of("nearest, one side", nearest, {2, 3, 19}, {2}),
           of("nearest, video", nearest, {1, 2, 3, 4, 5}, {1, 2, 2}),
           of("nearest, one place", nearest, {3, 4, 1, 1}, {2, 2}),
           of("nearest, blocks and rests", nearest, {2, 9, 17, 33}, {2, 2}),
           channels_last(of("nearest, channels last", nearest, {2, 24, 5, 6}, {2, 2})),
           of("mean", mean, {2, 3, 4, 6}, {2, 2}),
           of("mean, sides of their own", mean, {2, 5, 9, 7}, {3, 1}),
           of("mean, one side", mean, {2, 3, 20}, {5}),
           of("mean, video", mean, {1, 2, 3, 4, 6}, {1, 2, 2}),
           of("mean, to one place", mean, {3, 4, 2, 4}, {2, 4}),
           of("mean, blocks and rests", mean, {2, 9, 34, 66}, {2, 2}),
           channels_last(of("mean, channels last", mean, {2, 24, 6, 10}, {2, 2})),
           of("bicubic, larger", bicubic, {2, 3, 5, 7}, {10, 28}),
           of("bicubic, smaller", bicubic, {2, 3, 9, 8}, {3, 5}),
           of("bicubic, one side larger", bicubic, {1, 4, 5, 7}, {9, 4}),
           of("bicubic, one place", bicubic, {2, 3, 1, 1}, {3, 2}),
           of("bicubic, as it was", bicubic, {1, 2, 4, 5}, {4, 5}),
           channels_last(of("bicubic, channels last", bicubic, {2, 24, 6, 5}, {12, 10}))},
          tolerance};
}

}  // namespace ditto
