#include <cmath>

#include "groups.h"

namespace check {

namespace {

struct Kind {
  const char* kernel;
  bool centred, bias, weight;
  double plus;
  bool in_fp32;  // the result, whatever x is stored as
};
constexpr Kind kModulate{"norm_modulate", true, true, true, 1, false}, kLayer{"layer_norm", true, true, true, 0, false},
    kPlain{"layer_norm without weight", true, false, false, 0, false}, kRms{"rms_norm", false, false, true, 0, true};

struct Wanted {
  Reals y, dx, dweight, dbias;
};
Wanted reference(const Kind& kind, const Grouped& of, std::size_t D, const Reals& x, const Reals& w, const Reals& b,
                 const Reals& g, double eps) {
  const std::size_t R = of.rows();
  Wanted want{Reals(R * D), Reals(R * D), Reals(w.size()), Reals(w.size())};
  for (std::size_t r = 0; r < R; ++r) {
    const std::size_t at = r * D, s = of.group(r) * D;
    double mean = 0, square = 0, mean_h = 0, mean_hn = 0;
    if (kind.centred)
      for (std::size_t d = 0; d < D; ++d) mean += x[at + d] / static_cast<double>(D);
    for (std::size_t d = 0; d < D; ++d) square += std::pow(x[at + d] - mean, 2) / static_cast<double>(D);
    const double rstd = 1 / std::sqrt(square + eps);
    const auto weight = [&](std::size_t d) { return kind.weight ? kind.plus + w[s + d] : 1.0; };
    for (std::size_t d = 0; d < D; ++d) {
      const double n = (x[at + d] - mean) * rstd, h = g[at + d] * weight(d);
      want.y[at + d] = n * weight(d) + (kind.bias ? b[s + d] : 0);
      want.dweight[s + d] += g[at + d] * n;
      want.dbias[s + d] += g[at + d];
      mean_h += h / static_cast<double>(D), mean_hn += h * n / static_cast<double>(D);
    }
    for (std::size_t d = 0; d < D; ++d) {
      const double n = (x[at + d] - mean) * rstd;
      want.dx[at + d] = rstd * (g[at + d] * weight(d) - (kind.centred ? mean_h : 0) - n * mean_hn);
    }
  }
  return want;
}

void one(const Kind& kind, const char* name, const Grouped& of, Index width, double mean = 0) {
  const auto D = static_cast<std::size_t>(width), R = of.rows(), G = static_cast<std::size_t>(of.count);
  for (const auto storage : storages()) {
    Case c(kind.kernel, name, storage);
    const auto result = kind.in_fp32 ? Storage::fp32 : storage;
    auto from = drawn(R * D, 1);
    for (auto& one_x : from) one_x += mean;
    const Numbers x(storage, from), w(storage, drawn(G * D, 2, 0.5)), b(storage, drawn(G * D, 3)),
        g(result, drawn(R * D, 4)), y(result, R * D), dx(storage, R * D), dw(storage, G * D), db(storage, G * D);
    const Array<float> means(2 * R), rstds(R), chunks_g(of.chunk_numbers(width)), chunks_gn(of.chunk_numbers(width));
    const auto* weight = kind.weight ? w.at() : nullptr;
    const double eps = 1e-6;
    const auto plus = static_cast<float>(kind.plus);
    c.launched(of.prepare());
    c.launched(
        ditto_cuda::norm({x.at(), weight, kind.bias ? b.at() : nullptr, y.at(), kind.centred ? means.at() : nullptr,
                          rstds.at(), width, 1e-6f, plus, of.groups(), storage, result},
                         nullptr));
    c.launched(ditto_cuda::norm_back({x.at(), weight, g.at(), kind.centred ? means.at() : nullptr, rstds.at(), dx.at(),
                                      chunks_g.at(), chunks_gn.at(), width, plus, of.groups(), storage, result},
                                     nullptr));
    c.launched(ditto_cuda::add_chunks(chunks_g.at(), of.groups(), width, db.at(), storage, nullptr));
    c.launched(ditto_cuda::add_chunks(chunks_gn.at(), of.groups(), width, dw.at(), storage, nullptr));
    const auto want = reference(kind, of, D, x.read(), w.read(), b.read(), g.read(), eps);
    c.expect("y", y, want.y);
    c.expect("dx", dx, want.dx);
    c.expect("dweight", dw, want.dweight);
    c.expect("dbias", db, want.dbias);
  }
}

}  // namespace

void norms() {
  one(kModulate, "small", {2, 2 * 5}, 16);
  one(kModulate, "odd width", {3, 3 * 7}, 37);
  one(kModulate, "width of a small model", {4, 4 * 64}, 384);
  one(kModulate, "large mean", {2, 2 * 3}, 128, 100);
  one(kModulate, "packed", {3, packed(3, 11, false)}, 64);
  one(kModulate, "packed, in no order, one without rows", {4, packed(3, 75, true)}, 72);
  one(kModulate, "width of XL/2", {2, 2 * 40}, 1152);
  one(kModulate, "a block's most", {1, 3}, 1024);
  one(kModulate, "odd and wide", {2, 2 * 34}, 333);
  one(kLayer, "small", {1, 10}, 16);
  one(kLayer, "odd", {1, 21}, 37);
  one(kLayer, "many rows", {1, 700}, 48);
  one(kPlain, "odd", {1, 21}, 37);
  one(kRms, "small", {1, 10}, 16);
  one(kRms, "heads", {1, 42}, 12);
  one(kRms, "odd", {1, 3}, 37);
  one(kRms, "a weight a sample", {3, 21}, 12);
  one(kRms, "heads of XL/2", {1, 160}, 72);
}

}  // namespace check
