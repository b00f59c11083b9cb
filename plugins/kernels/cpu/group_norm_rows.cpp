// GroupNorm of maps with channels first or last, as they lie, with what follows it.
//
// Legend: B samples, C channels, G groups of them, P places.
#include <algorithm>
#include <array>
#include <cmath>

#include <ditto/math/threads.h>

#include "group_norm.h"
#include "rows.h"

namespace ditto_cpu {

namespace {

using ditto::OpInputs;
using ditto::Tensors;
using torch::Tensor;

using Sums = std::vector<double>;    // one for each channel of each sample
using Numbers = std::vector<float>;  // as many

constexpr int64_t kNumbers = 16 * 1024;  // of a piece

Tensor channels_last(const Tensor& x) { return x.movedim(1, -1); }

// A call's sizes, and its map's rows in pieces.
struct Maps {
  explicit Maps(const OpInputs& in)
      : B(in.tensors[0].size(0)),
        C(in.tensors[0].size(1)),
        G(in.whole("groups")),
        along(!in.tensors[0].is_contiguous() && channels_last(in.tensors[0]).is_contiguous() ? Along::channels
                                                                                             : Along::places),
        x(laid(in.tensors[0])),
        P(x.numel() / std::max<int64_t>(1, B * C)),
        of_group(static_cast<double>(C / G * P)),
        rows(along == Along::places ? C : P),
        width(along == Along::places ? P : C),
        rows_of_piece(std::clamp<int64_t>(kNumbers / std::max<int64_t>(1, width), 1, std::max<int64_t>(1, rows))),
        pieces((rows + rows_of_piece - 1) / rows_of_piece),
        storage(storage_of(x)) {}

  Tensor laid(const Tensor& like_x) const {
    return along == Along::places ? like_x.contiguous() : channels_last(like_x).contiguous().movedim(-1, 1);
  }
  Tensor room() const { return torch::empty_strided(x.sizes(), x.strides(), x.options().requires_grad(false)); }

  struct Piece {
    MapRows rows;
    int64_t sample, number, at;  // which of the sample's, and bytes before it
    size_t first;                // of the arrays with a number for each of a sample's channels
  };
  // Each is one thread's.
  template <class F>
  void each_piece(F of) const {
    ditto::in_threads(B * pieces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t sample = i / pieces, number = i % pieces, row = number * rows_of_piece;
        const int64_t count = std::min(rows_of_piece, rows - row);
        of(Piece{{static_cast<size_t>(count), static_cast<size_t>(width), along, storage},
                 sample,
                 number,
                 (sample * rows + row) * width * x.element_size(),
                 static_cast<size_t>(sample * C + (along == Along::places ? row : 0))});
      }
    });
  }

  // of(piece, sums…) adds to each channel's, which are kSums lists. Pieces have their own, added in their order.
  template <size_t kSums, class F>
  std::array<Sums, kSums> sums(F of) const {
    std::array<Sums, kSums> all;
    const auto channels = static_cast<size_t>(C);
    for (Sums& one : all) one.resize(static_cast<size_t>(B) * channels);
    if (along == Along::places) {  // a channel is one piece's
      each_piece([&](const Piece& piece) { of(piece, [&](size_t k) { return all[k].data() + piece.first; }); });
      return all;
    }
    Sums parts(kSums * static_cast<size_t>(B * pieces) * channels);
    const auto part = [&](int64_t sample, int64_t number, size_t k) {
      return parts.data() + (static_cast<size_t>(sample * pieces + number) * kSums + k) * channels;
    };
    each_piece([&](const Piece& piece) { of(piece, [&](size_t k) { return part(piece.sample, piece.number, k); }); });
    for (size_t k = 0; k < kSums; ++k)
      for (int64_t sample = 0; sample < B; ++sample)
        for (int64_t number = 0; number < pieces; ++number)
          for (size_t c = 0; c < channels; ++c)
            all[k][static_cast<size_t>(sample) * channels + c] += part(sample, number, k)[c];
    return all;
  }

  // Each group's sum over its channels, at each of these channels.
  Sums of_groups(const Sums& of_channels) const {
    const auto size = static_cast<size_t>(C / G);
    Sums sums(of_channels.size());
    for (size_t first = 0; first < sums.size(); first += size) {
      double sum = 0;
      for (size_t c = first; c < first + size; ++c) sum += of_channels[c];
      std::fill_n(sums.begin() + static_cast<int64_t>(first), size, sum);
    }
    return sums;
  }

  int64_t B, C, G;
  Along along;
  Tensor x;
  int64_t P;
  double of_group;  // numbers
  int64_t rows, width, rows_of_piece, pieces;
  Storage storage;
};

const char* bytes(const Tensor& x) { return static_cast<const char*>(x.const_data_ptr()); }
char* bytes_of(const Tensor& x) { return static_cast<char*>(x.data_ptr()); }

// A channel's weight, and what follows: undefined, none.
struct Affine {
  explicit Affine(const OpInputs& in)
      : weight(read(in.tensors[1])), bias(read(in.tensors[2])), shift(read(in.tensor(3))), scale(read(in.tensor(4))) {}
  static Tensor read(const Tensor& x) { return x.defined() ? x.detach().to(torch::kFloat).contiguous() : Tensor(); }
  static float one(const Tensor& x, size_t i) { return x.defined() ? x.const_data_ptr<float>()[i] : 0; }
  // n k + l, of channel c of the sample whose channels begin at `first`.
  float k(size_t first, size_t c) const { return one(weight, c) * (1 + one(scale, first + c)); }
  float l(size_t first, size_t c) const { return one(bias, c) * (1 + one(scale, first + c)) + one(shift, first + c); }
  Tensor weight, bias, shift, scale;
};

template <class F>
void each_channel(const Maps& maps, F of) {  // (number of the sample's first, channel)
  const auto channels = static_cast<size_t>(maps.C);
  for (size_t first = 0; first < channels * static_cast<size_t>(maps.B); first += channels)
    for (size_t c = 0; c < channels; ++c) of(first, c);
}

// A norm's numbers of every channel of every sample.
struct Norm {
  Norm(const Maps& maps, const Affine& affine, const Tensor& mean_BG, const Tensor& rstd_BG, bool silu)
      : mean(static_cast<size_t>(maps.B * maps.C)), rstd(mean), k(mean), l(mean), silu(silu) {
    const auto of_group = static_cast<size_t>(maps.C / maps.G);
    each_channel(maps, [&](size_t first, size_t c) {
      const size_t i = first + c;
      mean[i] = mean_BG.const_data_ptr<float>()[i / of_group], rstd[i] = rstd_BG.const_data_ptr<float>()[i / of_group];
      k[i] = affine.k(first, c), l[i] = affine.l(first, c);
    });
  }
  GroupNorm from(size_t first) const {
    return {mean.data() + first, rstd.data() + first, k.data() + first, l.data() + first, silu};
  }
  Numbers mean, rstd, k, l;
  bool silu;
};

// y, and the groups' means and reciprocal deviations for the backward.
Tensors norm(const OpInputs& in) {
  const Maps maps(in);
  const Tensors results{maps.room(), torch::empty({maps.B, maps.G}, torch::kFloat),
                        torch::empty({maps.B, maps.G}, torch::kFloat)};
  auto *mean = results[1].data_ptr<float>(), *rstd = results[2].data_ptr<float>();
  const auto size = static_cast<size_t>(maps.C / maps.G);
  const auto of_groups = [&](const Sums& sums, auto of) {
    const auto all = maps.of_groups(sums);
    for (size_t g = 0; g < static_cast<size_t>(maps.B * maps.G); ++g) of(g, all[g * size] / maps.of_group);
  };
  const auto* x = bytes(maps.x);
  of_groups(maps.sums<1>([&](const Maps::Piece& piece, auto to) { add_numbers(piece.rows, x + piece.at, to(0)); })[0],
            [&](size_t g, double of) { mean[g] = static_cast<float>(of); });
  Numbers means(static_cast<size_t>(maps.B * maps.C));
  for (size_t i = 0; i < means.size(); ++i) means[i] = mean[i / size];
  const double eps = in.number("eps");
  of_groups(maps.sums<1>([&](const Maps::Piece& piece, auto to) {
    add_squares(piece.rows, x + piece.at, means.data() + piece.first, to(0));
  })[0],
            [&](size_t g, double of) { rstd[g] = static_cast<float>(1 / std::sqrt(of + eps)); });
  const Norm all(maps, Affine(in), results[1], results[2], in.flag("silu"));
  auto* y = bytes_of(results[0]);
  maps.each_piece(
      [&](const Maps::Piece& piece) { normalise(piece.rows, x + piece.at, all.from(piece.first), y + piece.at); });
  return results;
}

// With S = sum of gz and N = sum of gz n over a channel's places, and by group the sums of k S and k N over its m
// numbers: dx = rstd (k gz - (sum k S + n sum k N) / m).
Tensors norm_back(const Tensors& grads, const OpInputs& in, const Tensors& results) {
  const Maps maps(in);
  const Affine affine(in);
  const Norm all(maps, affine, results[1], results[2], in.flag("silu"));
  const Tensor grad = maps.laid(grads[0]), dx = maps.room();
  const auto *x = bytes(maps.x), *g = bytes(grad);
  const auto [S, N] = maps.sums<2>([&](const Maps::Piece& piece, auto to) {
    add_gradients(piece.rows, x + piece.at, g + piece.at, all.from(piece.first), to(0), to(1));
  });
  Sums kS = S, kN = N;
  for (size_t i = 0; i < S.size(); ++i) kS[i] *= all.k[i], kN[i] *= all.k[i];
  kS = maps.of_groups(kS), kN = maps.of_groups(kN);
  Numbers p(S.size()), q(p), r(p);
  const auto fp32 = [](std::vector<int64_t> sizes) { return torch::zeros(sizes, torch::kFloat); };
  const Tensor dweight = fp32({maps.C}), dbias = fp32({maps.C}), dshift = fp32({maps.B, maps.C}),
               dscale = fp32({maps.B, maps.C});
  each_channel(maps, [&](size_t first, size_t c) {
    const size_t i = first + c;
    p[i] = all.rstd[i] * all.k[i];
    q[i] = static_cast<float>(-all.rstd[i] * kN[i] / maps.of_group);
    r[i] = static_cast<float>(-all.rstd[i] * kS[i] / maps.of_group);
    const double more = 1 + Affine::one(affine.scale, i);
    dweight.data_ptr<float>()[c] += static_cast<float>(more * N[i]);
    dbias.data_ptr<float>()[c] += static_cast<float>(more * S[i]);
    dshift.data_ptr<float>()[i] = static_cast<float>(S[i]);
    dscale.data_ptr<float>()[i] =
        static_cast<float>(Affine::one(affine.weight, c) * N[i] + Affine::one(affine.bias, c) * S[i]);
  });
  auto* to = bytes_of(dx);
  maps.each_piece([&](const Maps::Piece& piece) {
    normalise_back(piece.rows, x + piece.at, g + piece.at, all.from(piece.first),
                   {p.data() + piece.first, q.data() + piece.first, r.data() + piece.first}, to + piece.at);
  });
  Tensors back{dx, dweight, dbias};  // those of parameters as they are summed
  const auto dtype = maps.x.scalar_type();
  if (affine.scale.defined()) back.insert(back.end(), {dshift.to(dtype), dscale.to(dtype)});
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
  ditto::KernelRow row{"group_norm", "cpu_simd", score, norm, norm_back, shapes};
  row.reads_output = false;
  row.any_gradient = true;
  return row;
}

}  // namespace ditto_cpu
