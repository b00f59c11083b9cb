// GroupNorm of maps with channels first or last, as they lie, with what follows it.
//
// Legend: B samples, C channels, G groups of them, P places.
#include <algorithm>
#include <cmath>

#include <ditto/math/threads.h>

#include "group_norm.h"
#include "rows.h"

namespace ditto_cpu {

namespace {

using ditto::OpInputs;
using ditto::Tensors;
using torch::Tensor;

constexpr size_t kNumbers = 64 * 1024;  // of a piece of channels last
constexpr int64_t kFewest = 32 * 1024;  // numbers of a map, that a SiLU is worth it

const char* bytes(const Tensor& x) { return static_cast<const char*>(x.const_data_ptr()); }
char* place(const Tensor& x) { return static_cast<char*>(x.data_ptr()); }
Tensor channels_last(const Tensor& x) { return x.movedim(1, -1); }

bool lies_channels_last(const Tensor& x) { return !x.is_contiguous() && channels_last(x).is_contiguous(); }

// Where LibTorch is slower: in what follows a norm, which takes it a pass and a map for each operation, and in the
// backward of channels last. Elsewhere it may be pinned.
int score_of_norm(const ditto::OpCall& call) {
  const auto& in = call.inputs;
  const int can = score(call);
  if (can == 0 || in.tensor(4).defined()) return can;
  const bool silu = in.flag("silu");
  const bool wins = lies_channels_last(in.tensor(0)) ? silu || call.grad : silu && in.tensor(0).numel() >= kFewest;
  return wins ? can : 1;
}

// A call's map and its sizes.
struct Map {
  explicit Map(const OpInputs& in)
      : B(static_cast<size_t>(in.tensors[0].size(0))),
        C(static_cast<size_t>(in.tensors[0].size(1))),
        G(static_cast<size_t>(in.whole("groups"))),
        of_group(C / G),
        along(lies_channels_last(in.tensors[0]) ? Along::channels : Along::places),
        x(laid(in.tensors[0])),
        P(static_cast<size_t>(x.numel()) / std::max<size_t>(1, B * C)),
        size(static_cast<size_t>(x.element_size())),
        storage(storage_of(x)) {}

  Tensor laid(const Tensor& like_x) const {
    return along == Along::places ? like_x.contiguous() : channels_last(like_x).contiguous().movedim(-1, 1);
  }
  Tensor room() const { return torch::empty_strided(x.sizes(), x.strides(), x.options().requires_grad(false)); }
  double numbers() const { return static_cast<double>(of_group * P); }  // of a group

  size_t B, C, G, of_group;  // channels
  Along along;
  Tensor x;
  size_t P, size;  // bytes of a number
  Storage storage;
};

// Of channels first: a group of a sample lies in one piece. of(group, its first channel of all samples', bytes before).
template <class F>
void each_group(const Map& map, F of) {
  ditto::in_threads(static_cast<int64_t>(map.B * map.G), 1, [&](int64_t begin, int64_t end) {
    for (auto group = static_cast<size_t>(begin); group < static_cast<size_t>(end); ++group)
      of(group, group * map.of_group, group * map.of_group * map.P * map.size);
  });
}

// Of channels last: places of a sample in pieces. of(rows, piece, the sample's first channel, bytes before).
struct Pieces {
  explicit Pieces(const Map& map_)
      : map(map_), places(std::max<size_t>(1, kNumbers / map.C)), of_sample((map.P + places - 1) / places) {}
  template <class F>
  void each(F of) const {
    ditto::in_threads(static_cast<int64_t>(map.B * of_sample), 1, [&](int64_t begin, int64_t end) {
      for (auto piece = static_cast<size_t>(begin); piece < static_cast<size_t>(end); ++piece) {
        const size_t sample = piece / of_sample, first = piece % of_sample * places;
        const MapRows rows{std::min(places, map.P - first), map.C, Along::channels, map.storage};
        of(rows, piece, sample * map.C, (sample * map.P + first) * map.C * map.size);
      }
    });
  }
  // Sums of each channel of each sample, which of(rows, sums, first channel, bytes) adds to: as many lists, one behind
  // the other. A piece has its own; they are added in their order.
  template <class F>
  std::vector<double> sums(size_t lists, F of) const {
    const size_t each_has = lists * map.C;
    std::vector<double> parts(map.B * of_sample * each_has), all(lists * map.B * map.C);
    each([&](const MapRows& rows, size_t piece, size_t first, size_t before) {
      of(rows, parts.data() + piece * each_has, first, before);
    });
    for (size_t piece = 0; piece < map.B * of_sample; ++piece)
      for (size_t list = 0; list < lists; ++list)
        for (size_t c = 0; c < map.C; ++c)
          all[(list * map.B + piece / of_sample) * map.C + c] += parts[piece * each_has + list * map.C + c];
    return all;
  }
  const Map& map;
  size_t places, of_sample;
};

// Numbers of every channel of every sample: what is known from the start, and what of a group is set.
class Channels {
 public:
  Channels(const Map& map, const OpInputs& in)
      : map_(map), silu_(in.flag("silu")), eps_(in.number("eps")), all_(7 * map.B * map.C) {
    const auto read = [](const Tensor& x) { return x.defined() ? x.detach().to(torch::kFloat).contiguous() : x; };
    const auto numbers = [](const Tensor& x) { return x.defined() ? x.const_data_ptr<float>() : nullptr; };
    weight_ = read(in.tensors[1]), bias_ = read(in.tensors[2]), scale_ = read(in.tensor(4));
    const Tensor shift = read(in.tensor(3));
    const auto *w = numbers(weight_), *b = numbers(bias_), *more = numbers(scale_), *plus = numbers(shift);
    for (size_t i = 0; i < count(); ++i) {
      const float times = more ? 1 + more[i] : 1;
      at(k)[i] = w[i % map.C] * times, at(l)[i] = b[i % map.C] * times + (plus ? plus[i] : 0);
    }
  }
  size_t count() const { return map_.B * map_.C; }
  // Those of all groups, as norm() gives them.
  void set_groups(const Tensors& results) {
    for (size_t group = 0; group < map_.B * map_.G; ++group) {
      set_mean(group * map_.of_group, results[1].const_data_ptr<float>()[group]);
      set_rstd(group * map_.of_group, results[2].const_data_ptr<float>()[group]);
    }
  }
  void set_mean(size_t first, float of) { fill(mean, first, of); }
  void set_rstd(size_t first, float of) { fill(rstd, first, of); }
  float of_squares(double sum) const { return static_cast<float>(1 / std::sqrt(sum / map_.numbers() + eps_)); }
  const float* means(size_t first) { return at(mean) + first; }
  GroupNorm norm(size_t first) { return {at(mean) + first, at(rstd) + first, at(k) + first, at(l) + first, silu_}; }
  // With S = sum of gz and N = sum of gz n over a channel's places, and by group the sums of k S and k N over its m
  // numbers: dx = rstd (k gz - (sum of k S + n sum of k N) / m).
  void set_back(size_t first, const double* S, const double* N) {
    double kS = 0, kN = 0;
    for (size_t c = 0; c < map_.of_group; ++c) kS += at(k)[first + c] * S[c], kN += at(k)[first + c] * N[c];
    const float rstd_here = at(rstd)[first];
    for (size_t c = first; c < first + map_.of_group; ++c) at(p)[c] = rstd_here * at(k)[c];
    fill(q, first, static_cast<float>(-rstd_here * kN / map_.numbers()));
    fill(r, first, static_cast<float>(-rstd_here * kS / map_.numbers()));
  }
  GroupNormBack back(size_t first) { return {at(p) + first, at(q) + first, at(r) + first}; }

  // Gradients of weight, bias, and where they are there shift and scale: those of parameters as they are summed.
  Tensors others(const double* S, const double* N) const {
    const auto fp32 = [](std::initializer_list<size_t> sizes) {
      return torch::zeros(std::vector<int64_t>(sizes.begin(), sizes.end()), torch::kFloat);
    };
    const Tensor dweight = fp32({map_.C}), dbias = fp32({map_.C}), dshift = fp32({map_.B, map_.C}),
                 dscale = fp32({map_.B, map_.C});
    auto *dw = dweight.data_ptr<float>(), *db = dbias.data_ptr<float>(), *dplus = dshift.data_ptr<float>(),
         *dmore = dscale.data_ptr<float>();
    const auto *w = weight_.const_data_ptr<float>(), *b = bias_.const_data_ptr<float>(),
               *more = scale_.defined() ? scale_.const_data_ptr<float>() : nullptr;
    for (size_t i = 0; i < count(); ++i) {
      const size_t c = i % map_.C;
      const double times = more ? 1 + more[i] : 1;
      dw[c] += static_cast<float>(times * N[i]), db[c] += static_cast<float>(times * S[i]);
      dplus[i] = static_cast<float>(S[i]), dmore[i] = static_cast<float>(w[c] * N[i] + b[c] * S[i]);
    }
    if (!more) return {dweight, dbias};
    return {dweight, dbias, dshift.to(map_.x.scalar_type()), dscale.to(map_.x.scalar_type())};
  }

 private:
  enum Which { mean, rstd, k, l, p, q, r };
  float* at(Which which) { return all_.data() + static_cast<size_t>(which) * count(); }
  void fill(Which which, size_t first, float of) { std::fill_n(at(which) + first, map_.of_group, of); }
  const Map& map_;
  bool silu_;
  double eps_;
  std::vector<float> all_;
  Tensor weight_, bias_, scale_;
};

// y, and the groups' means and reciprocal deviations for the backward.
Tensors norm(const OpInputs& in) {
  const Map map(in);
  Channels channels(map, in);
  const auto of_groups = [&] {
    return torch::empty({static_cast<int64_t>(map.B), static_cast<int64_t>(map.G)}, torch::kFloat);
  };
  const Tensors results{map.room(), of_groups(), of_groups()};
  const auto* x = bytes(map.x);
  auto* y = place(results[0]);
  auto *mean = results[1].data_ptr<float>(), *rstd = results[2].data_ptr<float>();
  const auto set_mean = [&](size_t group, double sum) {
    channels.set_mean(group * map.of_group, mean[group] = static_cast<float>(sum / map.numbers()));
  };
  const auto set_rstd = [&](size_t group, double sum) {
    channels.set_rstd(group * map.of_group, rstd[group] = channels.of_squares(sum));
  };
  if (map.along == Along::places) {
    each_group(map, [&](size_t group, size_t first, size_t before) {
      const MapRows one{1, map.of_group * map.P, Along::places, map.storage};
      double sum = 0, squares = 0;
      add_numbers(one, x + before, &sum);
      set_mean(group, sum);
      add_squares(one, x + before, channels.means(first), &squares);
      set_rstd(group, squares);
      normalise({map.of_group, map.P, Along::places, map.storage}, x + before, channels.norm(first), y + before);
    });
    return results;
  }
  const Pieces pieces(map);
  const auto by_group = [&](const std::vector<double>& sums, auto set) {
    for (size_t group = 0; group < map.B * map.G; ++group) {
      double sum = 0;
      for (size_t c = 0; c < map.of_group; ++c) sum += sums[group * map.of_group + c];
      set(group, sum);
    }
  };
  by_group(pieces.sums(1, [&](const MapRows& rows, double* sums, size_t,
                              size_t before) { add_numbers(rows, x + before, sums); }),
           set_mean);
  by_group(pieces.sums(1, [&](const MapRows& rows, double* sums, size_t first,
                              size_t before) { add_squares(rows, x + before, channels.means(first), sums); }),
           set_rstd);
  pieces.each([&](const MapRows& rows, size_t, size_t first, size_t before) {
    normalise(rows, x + before, channels.norm(first), y + before);
  });
  return results;
}

Tensor norm_again(const OpInputs& in, const Tensors& results) {
  const Map map(in);
  Channels channels(map, in);
  channels.set_groups(results);
  const Tensor made = map.room();
  const auto* x = bytes(map.x);
  auto* y = place(made);
  if (map.along == Along::places)
    each_group(map, [&](size_t, size_t first, size_t before) {
      normalise({map.of_group, map.P, Along::places, map.storage}, x + before, channels.norm(first), y + before);
    });
  else
    Pieces(map).each([&](const MapRows& rows, size_t, size_t first, size_t before) {
      normalise(rows, x + before, channels.norm(first), y + before);
    });
  return made;
}

Tensors norm_back(const Tensors& grads, const OpInputs& in, const Tensors& results) {
  const Map map(in);
  Channels channels(map, in);
  const Tensor grad = map.laid(grads[0]), dx = map.room();
  const auto *x = bytes(map.x), *dy = bytes(grad);
  auto* to = place(dx);
  channels.set_groups(results);
  std::vector<double> sums;
  double *S = nullptr, *N = nullptr;
  if (map.along == Along::places) {
    sums.resize(2 * channels.count()), S = sums.data(), N = S + channels.count();
    each_group(map, [&](size_t, size_t first, size_t before) {
      const MapRows rows{map.of_group, map.P, Along::places, map.storage};
      add_gradients(rows, x + before, dy + before, channels.norm(first), to + before, S + first, N + first);
      channels.set_back(first, S + first, N + first);
      normalise_back(rows, x + before, channels.norm(first), channels.back(first), to + before);
    });
  } else {
    const Pieces pieces(map);
    sums = pieces.sums(2, [&](const MapRows& rows, double* of_piece, size_t first, size_t before) {
      add_gradients(rows, x + before, dy + before, channels.norm(first), to + before, of_piece, of_piece + map.C);
    });
    S = sums.data(), N = S + channels.count();
    for (size_t first = 0; first < channels.count(); first += map.of_group)
      channels.set_back(first, S + first, N + first);
    pieces.each([&](const MapRows& rows, size_t, size_t first, size_t before) {
      normalise_back(rows, x + before, channels.norm(first), channels.back(first), to + before);
    });
  }
  Tensors back{dx};
  for (auto& one : channels.others(S, N)) back.push_back(std::move(one));
  return back;
}

Tensors shapes(const OpInputs& in) {
  const Tensor& x = in.tensors[0];
  const auto of_groups = [&] {
    return torch::empty({x.size(0), in.whole("groups")}, x.options().requires_grad(false).dtype(torch::kFloat));
  };
  return {torch::empty_like(x), of_groups(), of_groups()};
}

}  // namespace

ditto::KernelRow group_norm() {
  ditto::KernelRow row{"group_norm", "cpu_simd", score_of_norm, norm, norm_back, shapes};
  row.any_gradient = true;
  row.again = norm_again;
  row.again_of = {0, 1, 2, 3, 4};
  return row;
}

}  // namespace ditto_cpu
