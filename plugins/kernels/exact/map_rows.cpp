// Norms of groups of channels, numbers added to channels, and maps with other sides.
//
// Legend: S samples, C channels, G groups of them, P places.
#include <algorithm>
#include <cmath>

#include "row_calls.h"

namespace ditto_exact {

namespace {

Tensors one_like(const OpInputs& in) {
  return {torch::empty(in.tensor(0).sizes(), in.tensor(0).options().requires_grad(false))};
}

Tensor contiguous(const Tensor& x) { return x.defined() ? x.contiguous() : x; }
const float* numbers_or_none(const Tensor& x) { return x.defined() ? numbers(x) : nullptr; }

struct Groups {
  explicit Groups(const OpInputs& in)
      : x(in.tensor(0).contiguous()),
        weight(in.tensor(1).contiguous()),
        bias(in.tensor(2).contiguous()),
        shift(contiguous(in.tensor(3))),
        scale(contiguous(in.tensor(4))),
        of_sample(in.whole("groups")),
        all(x.size(0) * of_sample),
        channels(x.size(1) / of_sample),
        places(c10::multiply_integers(x.sizes().slice(2))) {}

  GroupNorm norm(const OpInputs& in, const Tensor& y, const Tensor& mean, const Tensor& rstd) const {
    return {numbers(x),
            numbers(weight),
            numbers(bias),
            numbers_or_none(shift),
            numbers_or_none(scale),
            y.defined() ? place(y) : nullptr,
            place(mean),
            place(rstd),
            of_sample,
            channels,
            places,
            static_cast<float>(in.number("eps")),
            in.flag("silu")};
  }

  Tensor x, weight, bias, shift, scale;
  Index of_sample, all, channels, places;
};

// A side's places as sums of another's.
struct SideSums {
  Index from, to;
  std::vector<Index> start{0}, place{};
  std::vector<float> weight{};

  void add(Index at, double by) { place.push_back(at), weight.push_back(static_cast<float>(by)); }
  void end() { start.push_back(static_cast<Index>(place.size())); }

  // Of gradients: of each place that came in the terms in the order of the places that came out.
  SideSums back() const {
    std::vector<std::vector<std::pair<Index, float>>> terms(static_cast<size_t>(from));
    for (Index i = 0; i < to; ++i)
      for (Index k = start[static_cast<size_t>(i)]; k < start[static_cast<size_t>(i) + 1]; ++k)
        terms[static_cast<size_t>(place[static_cast<size_t>(k)])].emplace_back(i, weight[static_cast<size_t>(k)]);
    SideSums sums{to, from};
    for (const auto& one : terms) {
      for (const auto& [at, by] : one) sums.add(at, by);
      sums.end();
    }
    return sums;
  }

  Tensor operator()(const Kernels& k, const Tensor& x, int64_t dim) const {
    auto shape = x.sizes().vec();
    shape[static_cast<size_t>(dim)] = to;
    auto y = torch::empty(shape, torch::kFloat);
    const Index rows = c10::multiply_integers(x.sizes().slice(0, static_cast<size_t>(dim))),
                inner = c10::multiply_integers(x.sizes().slice(static_cast<size_t>(dim) + 1));
    const Mixture mixture{numbers(x), ditto_exact::place(y), from,         to,
                          inner,      start.data(),          place.data(), weight.data()};
    in_parts(rows, to * inner, [&](Index begin, Index end) { k.mix(mixture, begin, end); });
    return y;
  }
};

SideSums nearest(Index from, Index times) {
  SideSums sums{from, from * times};
  for (Index i = 0; i < sums.to; ++i) sums.add(i / times, 1), sums.end();
  return sums;
}

// Cubic convolution (R. Keys, 1981), corners not aligned; places beyond an end are those at it.
SideSums cubic(Index from, Index to) {
  constexpr double a = -0.75;
  const auto near = [](double x) { return ((a + 2) * x - (a + 3)) * x * x + 1; };
  const auto far = [](double x) { return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a; };
  SideSums sums{from, to};
  for (Index i = 0; i < to; ++i) {
    const double at = static_cast<double>(from) / static_cast<double>(to) * (static_cast<double>(i) + 0.5) - 0.5;
    const double first = std::floor(at), x = at - first;
    const double weights[] = {far(x + 1), near(x), near(1 - x), far(2 - x)};
    for (Index j = 0; j < 4; ++j)
      sums.add(std::clamp<Index>(static_cast<Index>(first) - 1 + j, 0, from - 1), weights[j]);
    sums.end();
  }
  return sums;
}

// Of an op "resample".
struct Sides {
  explicit Sides(const OpInputs& in) : kind(static_cast<ditto::Resample>(in.whole("kind"))) {
    const auto& numbers = in.list("sides");
    for (size_t side = 0; side < numbers.size(); ++side) {
      const Index places = in.tensor(0).sizes()[side + 2];
      switch (kind) {
        case ditto::Resample::nearest: forward.push_back(nearest(places, numbers[side])); break;
        case ditto::Resample::mean: forward.push_back(nearest(places / numbers[side], numbers[side]).back()); break;
        case ditto::Resample::bicubic: forward.push_back(cubic(places, numbers[side])); break;
      }
    }
    if (kind == ditto::Resample::mean) divisor = static_cast<double>(c10::multiply_integers(numbers));
  }
  static bool fit(const OpInputs& in) {
    const Tensor& x = in.tensor(0);
    const auto& numbers = in.list("sides");
    if (x.dim() < 3 || x.numel() == 0 || static_cast<int64_t>(numbers.size()) != x.dim() - 2) return false;
    bool fit = true;
    for (size_t side = 0; side < numbers.size(); ++side)
      fit =
          fit && numbers[side] > 0 &&
          (in.whole("kind") != static_cast<int64_t>(ditto::Resample::mean) || x.sizes()[side + 2] % numbers[side] == 0);
    return fit;
  }
  ditto::Resample kind;
  std::vector<SideSums> forward;
  double divisor = 1;
};

}  // namespace

KernelRow group_norm(const Kernels& k) {
  KernelRow row{"group_norm", k.variant};
  row.score = [&k](const OpCall& call) {
    const auto& in = call.inputs;
    const Index groups = in.whole("groups");
    return fits(call) && in.tensor(0).dim() >= 2 && groups > 0 && in.tensor(0).size(1) % groups == 0 &&
                   in.tensor(1).defined() && in.tensor(2).defined() && in.tensor(3).defined() == in.tensor(4).defined()
               ? map_score(k, call)
               : 0;
  };
  row.forward = [&k](const OpInputs& in) -> Tensors {
    const Groups groups(in);
    Tensors results{torch::empty_like(groups.x), torch::empty({groups.all}, torch::kFloat),
                    torch::empty({groups.all}, torch::kFloat)};
    const auto norm = groups.norm(in, results[0], results[1], results[2]);
    in_parts(groups.all, groups.channels * groups.places,
             [&](Index begin, Index end) { k.group_norm(norm, begin, end); });
    return results;
  };
  row.backward = [&k](const Tensors& grads, const OpInputs& in, const Tensors& results) -> Tensors {
    const Groups groups(in);
    const auto g = grads[0].contiguous();
    const auto rows = [&] { return torch::empty(groups.x.sizes().slice(0, 2), torch::kFloat); };
    const Tensor dx = torch::empty_like(groups.x), dweight = rows(), dbias = rows();
    Tensors back(5);
    if (groups.scale.defined()) back[3] = rows(), back[4] = rows();
    const GroupNormBack of{groups.norm(in, {}, results[1], results[2]),
                           numbers(g),
                           place(dx),
                           place(dweight),
                           place(dbias),
                           groups.scale.defined() ? place(back[3]) : nullptr,
                           groups.scale.defined() ? place(back[4]) : nullptr};
    in_parts(groups.all, groups.channels * groups.places,
             [&](Index begin, Index end) { k.group_norm_back(of, begin, end); });
    if (wanted(in, 0)) back[0] = dx;
    if (wanted(in, 1)) back[1] = sum_of_samples(k, dweight, in);
    if (wanted(in, 2)) back[2] = sum_of_samples(k, dbias, in);
    return back;
  };
  row.shapes = [](const OpInputs& in) -> Tensors {
    const auto options = in.tensor(0).options().requires_grad(false);
    const auto of_groups = [&] { return torch::empty({in.tensor(0).size(0) * in.whole("groups")}, options); };
    return {torch::empty(in.tensor(0).sizes(), options), of_groups(), of_groups()};
  };
  row.knows = {"token_leaf"};
  row.reads_output = false;
  row.again = [forward = row.forward](const OpInputs& in, const Tensors&) { return forward(in)[0]; };
  row.again_of = {0, 1, 2, 3, 4};
  return row;
}

KernelRow add_channels(const Kernels& k) {
  KernelRow row{"add_channels", k.variant};
  row.score = [&k](const OpCall& call) {
    const Tensor &x = call.inputs.tensor(0), &rows = call.inputs.tensor(1);
    return fits_with_leaf(call) && x.dim() >= 2 && rows.sizes() == x.sizes().slice(0, 2) ? map_score(k, call) : 0;
  };
  row.forward = [&k](const OpInputs& in) -> Tensors {
    const Tensor x = in.tensor(0).contiguous(), rows = in.tensor(1).contiguous();
    auto sum = torch::empty_like(x);
    const Index places = c10::multiply_integers(x.sizes().slice(2));
    in_parts(rows.numel(), places, [&](Index begin, Index end) {
      for (Index r = begin; r < end; ++r)
        k.add_number(numbers(x) + r * places, numbers(rows)[r], place(sum) + r * places, places);
    });
    return {sum};
  };
  row.backward = [&k](const Tensors& grads, const OpInputs& in, const Tensors&) -> Tensors {
    const auto g = grads[0].contiguous();
    Tensors back(2);
    if (wanted(in, 0)) back[0] = g;
    if (wanted(in, 1)) back[1] = sums_of_channels(k, g, token_leaf(in));
    return back;
  };
  row.shapes = one_like;
  row.knows = {"token_leaf"};
  row.reads_output = false;
  return row;
}

// Side after side: cubic convolution the last one first, all else, and its gradient, the first one first.
KernelRow resample(const Kernels& k) {
  KernelRow row{"resample", k.variant};
  row.score = [&k](const OpCall& call) { return fits(call) && Sides::fit(call.inputs) ? map_score(k, call) : 0; };
  row.forward = [&k](const OpInputs& in) -> Tensors {
    const Sides sides(in);
    Tensor y = in.tensor(0).detach().contiguous();
    const auto count = static_cast<int64_t>(sides.forward.size());
    for (int64_t i = 0; i < count; ++i) {
      const int64_t side = sides.kind == ditto::Resample::bicubic ? count - 1 - i : i;
      y = sides.forward[static_cast<size_t>(side)](k, y, side + 2);
    }
    return {sides.divisor == 1 ? y : y / sides.divisor};
  };
  row.backward = [&k](const Tensors& grads, const OpInputs& in, const Tensors&) -> Tensors {
    const Sides sides(in);
    Tensor g = grads[0].contiguous();
    if (sides.divisor != 1) g = g / sides.divisor;
    for (size_t side = 0; side < sides.forward.size(); ++side)
      g = sides.forward[side].back()(k, g, static_cast<int64_t>(side) + 2);
    return {g};
  };
  row.shapes = [](const OpInputs& in) -> Tensors {
    auto shape = in.tensor(0).sizes().vec();
    const Sides sides(in);
    for (size_t side = 0; side < sides.forward.size(); ++side) shape[side + 2] = sides.forward[side].to;
    return {torch::empty(shape, in.tensor(0).options().requires_grad(false))};
  };
  row.reads_output = false;
  return row;
}

}  // namespace ditto_exact
