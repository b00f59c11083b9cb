#include <cmath>

#include "check.h"

namespace check {

namespace {

struct Shape {
  std::size_t B, C, P, G;
  bool last = false, modulated = false, silu = false;
  double mean = 0;
  std::size_t at(std::size_t b, std::size_t c, std::size_t p) const {
    return last ? (b * P + p) * C + c : (b * C + c) * P + p;
  }
  template <class F>
  void each(F of) const {  // of(sample's channel, place of the number)
    for (std::size_t bc = 0; bc < B * C; ++bc)
      for (std::size_t p = 0; p < P; ++p) of(bc, at(bc / C, bc % C, p));
  }
};

struct Wanted {
  Reals y, dx, dweight, dbias, dshift, dscale;
};
Wanted reference(const Shape& s, const Reals& x, const Reals& w, const Reals& b, const Reals& shift, const Reals& scale,
                 const Reals& g, double eps) {
  const std::size_t numbers = s.B * s.C * s.P, of_group = s.C / s.G, groups = s.B * s.G;
  const auto m = static_cast<double>(of_group * s.P);
  const auto group = [&](std::size_t bc) { return bc / s.C * s.G + bc % s.C / of_group; };
  Reals mean(groups), square(groups), first(groups), second(groups), n(numbers), gz(numbers);
  s.each([&](std::size_t bc, std::size_t i) { mean[group(bc)] += x[i] / m; });
  s.each([&](std::size_t bc, std::size_t i) { square[group(bc)] += std::pow(x[i] - mean[group(bc)], 2) / m; });
  Wanted want{Reals(numbers), Reals(numbers), Reals(s.C), Reals(s.C), Reals(s.B * s.C), Reals(s.B * s.C)};
  const auto k = [&](std::size_t bc) { return w[bc % s.C] * (s.modulated ? 1 + scale[bc] : 1); };
  s.each([&](std::size_t bc, std::size_t i) {
    const std::size_t c = bc % s.C;
    n[i] = (x[i] - mean[group(bc)]) / std::sqrt(square[group(bc)] + eps);
    const double times = s.modulated ? 1 + scale[bc] : 1, plain = n[i] * w[c] + b[c];
    const double z = plain * times + (s.modulated ? shift[bc] : 0), sigma = 1 / (1 + std::exp(-z));
    want.y[i] = s.silu ? z * sigma : z;
    gz[i] = g[i] * (s.silu ? sigma * (1 + z * (1 - sigma)) : 1);
    want.dweight[c] += gz[i] * times * n[i];
    want.dbias[c] += gz[i] * times;
    want.dshift[bc] += gz[i];
    want.dscale[bc] += gz[i] * plain;
    first[group(bc)] += k(bc) * gz[i] / m;
    second[group(bc)] += k(bc) * gz[i] * n[i] / m;
  });
  s.each([&](std::size_t bc, std::size_t i) {
    want.dx[i] = (k(bc) * gz[i] - first[group(bc)] - n[i] * second[group(bc)]) / std::sqrt(square[group(bc)] + eps);
  });
  return want;
}

void one(const char* name, const Shape& s) {
  const std::size_t numbers = s.B * s.C * s.P;
  for (const auto storage : storages()) {
    Case c("group_norm", name, storage);
    auto from = drawn(numbers, 1);
    for (auto& number : from) number += s.mean;
    const Numbers x(storage, from), w(storage, drawn(s.C, 2)), b(storage, drawn(s.C, 3)),
        shift(storage, drawn(s.B * s.C, 4, 0.5)), scale(storage, drawn(s.B * s.C, 5, 0.5)),
        g(storage, drawn(numbers, 6)), y(storage, numbers), dx(storage, numbers), dshift(storage, s.B * s.C),
        dscale(storage, s.B * s.C);
    const Array<float> mean(2 * s.B * s.G), rstd(s.B * s.G), dw(s.C), db(s.C);
    const ditto_cuda::GroupNorm p{x.at(),
                                  w.at(),
                                  b.at(),
                                  s.modulated ? shift.at() : nullptr,
                                  s.modulated ? scale.at() : nullptr,
                                  mean.at(),
                                  rstd.at(),
                                  static_cast<Index>(s.B),
                                  static_cast<Index>(s.C),
                                  static_cast<Index>(s.P),
                                  static_cast<Index>(s.G),
                                  s.last,
                                  s.silu,
                                  1e-5f,
                                  storage};
    const auto room_size = static_cast<std::size_t>(ditto_cuda::group_norm_room(p));
    const Array<float> room(room_size), room_back(room_size);
    c.launched(ditto_cuda::group_norm(p, y.at(), room.at(), nullptr));
    c.launched(ditto_cuda::group_norm_back(
        p,
        {g.at(), dx.at(), dw.at(), db.at(), s.modulated ? dshift.at() : nullptr, s.modulated ? dscale.at() : nullptr},
        room_back.at(), nullptr));
    const auto want = reference(s, x.read(), w.read(), b.read(), shift.read(), scale.read(), g.read(), 1e-5);
    c.expect("y", y, want.y);
    c.expect("dx", dx, want.dx);
    c.expect("dweight", dw, want.dweight);
    c.expect("dbias", db, want.dbias);
    if (!s.modulated) continue;
    c.expect("dshift", dshift, want.dshift);
    c.expect("dscale", dscale, want.dscale);
  }
}

}  // namespace

void group_norms() {
  one("small", {2, 6, 20, 3});
  one("silu", {2, 6, 20, 2, false, false, true});
  one("modulated", {3, 8, 25, 4, false, true});
  one("modulated, silu", {3, 12, 21, 4, false, true, true});
  one("one side", {2, 6, 37, 3, false, false, true});
  one("video", {2, 4, 30, 2, false, true});
  one("no sides", {3, 16, 1, 4, false, true, true});
  one("blocks and rests", {2, 64, 19 * 17, 32, false, true, true});
  one("pieces", {1, 4, 5000, 2, false, false, true});
  one("large mean", {2, 8, 81, 2, false, false, false, 100});
  one("channels last", {2, 40, 63, 8, true, true, true});
  one("channels last, large mean", {2, 6, 99, 2, true, false, false, 10});
  one("channels last, wide", {2, 320, 70, 32, true, false, true});
}

}  // namespace check
