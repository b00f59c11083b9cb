// Gates, added rows, rows of a table, functions of numbers and softmax.
#include <algorithm>
#include <cmath>

#include "../../plugins/kernels/exact/kernels.h"
#include "groups.h"

namespace check {

namespace {

void gated(const char* name, const Grouped& of, Index width) {
  const auto D = static_cast<std::size_t>(width), R = of.rows(), G = static_cast<std::size_t>(of.count);
  for (const auto storage : storages()) {
    Case c("gated_residual", name, storage);
    const Numbers x(storage, drawn(R * D, 1)), gate(storage, drawn(G * D, 2)), y(storage, drawn(R * D, 3)),
        g(storage, drawn(R * D, 4)), out(storage, R * D), dy(storage, R * D), dgate(storage, G * D);
    const Array<float> chunks(of.chunk_numbers(width));
    c.launched(of.prepare());
    c.launched(ditto_cuda::gate({x.at(), gate.at(), y.at(), out.at(), width, of.groups(), storage}, nullptr));
    c.launched(
        ditto_cuda::gate_back({gate.at(), y.at(), g.at(), dy.at(), chunks.at(), width, of.groups(), storage}, nullptr));
    c.launched(ditto_cuda::add_chunks(chunks.at(), of.groups(), width, dgate.at(), storage, nullptr));
    const auto vx = x.read(), vgate = gate.read(), vy = y.read(), vg = g.read();
    Reals want(R * D), want_dy(R * D), want_dgate(G * D);
    for (std::size_t i = 0; i < R * D; ++i) {
      const std::size_t at = of.group(i / D) * D + i % D;
      want[i] = vx[i] + vgate[at] * vy[i];
      want_dy[i] = vg[i] * vgate[at];
      want_dgate[at] += vg[i] * vy[i];
    }
    c.expect("out", out, want);
    c.expect("dy", dy, want_dy);
    c.expect("dgate", dgate, want_dgate);
  }
}

void row_added(const char* name, Index rows, Index width) {
  const auto D = static_cast<std::size_t>(width), R = static_cast<std::size_t>(rows);
  const Grouped of(1, rows);
  for (const auto storage : storages()) {
    Case c("add_row", name, storage);
    const Numbers x(storage, drawn(R * D, 1)), row(storage, drawn(D, 2)), g(storage, drawn(R * D, 3)),
        out(storage, R * D), drow(storage, D);
    const Array<float> chunks(of.chunk_numbers(width));
    c.launched(ditto_cuda::gate({x.at(), row.at(), nullptr, out.at(), width, of.groups(), storage}, nullptr));
    c.launched(
        ditto_cuda::gate_back({nullptr, nullptr, g.at(), nullptr, chunks.at(), width, of.groups(), storage}, nullptr));
    c.launched(ditto_cuda::add_chunks(chunks.at(), of.groups(), width, drow.at(), storage, nullptr));
    const auto vx = x.read(), vrow = row.read(), vg = g.read();
    Reals want(R * D), want_drow(D);
    for (std::size_t i = 0; i < R * D; ++i) want[i] = vx[i] + vrow[i % D], want_drow[i % D] += vg[i];
    c.expect("out", out, want);
    c.expect("drow", drow, want_drow);
  }
}

void table(const char* name, Index entries, Index width, std::vector<Index> index) {
  const Grouped of(entries, index);
  const auto D = static_cast<std::size_t>(width), R = of.rows(), E = static_cast<std::size_t>(entries);
  for (const auto storage : storages()) {
    Case c("embedding_rows", name, storage);
    const Numbers rows(storage, drawn(E * D, 1)), g(storage, drawn(R * D, 2)), out(storage, R * D),
        dtable(storage, E * D);
    const Array<float> chunks(of.chunk_numbers(width));
    c.launched(of.prepare());
    c.launched(ditto_cuda::gate({nullptr, rows.at(), nullptr, out.at(), width, of.groups(), storage}, nullptr));
    c.launched(
        ditto_cuda::gate_back({nullptr, nullptr, g.at(), nullptr, chunks.at(), width, of.groups(), storage}, nullptr));
    c.launched(ditto_cuda::add_chunks(chunks.at(), of.groups(), width, dtable.at(), storage, nullptr));
    const auto v = rows.read(), vg = g.read();
    Reals want(R * D), want_dtable(E * D);
    for (std::size_t i = 0; i < R * D; ++i) {
      const std::size_t at = static_cast<std::size_t>(index[i / D]) * D + i % D;
      want[i] = v[at], want_dtable[at] += vg[i];
    }
    c.expect("out", out, want);
    c.expect("dtable", dtable, want_dtable);
  }
}

struct Known {
  const char* name;
  ditto_cuda::Function function;
  double (*of)(double);
  double (*slope)(double);
  void (*exact)(const float*, float*, ditto_exact::Index);
  void (*exact_back)(const float*, const float*, float*, ditto_exact::Index);
};
double logistic(double x) { return 1 / (1 + std::exp(-x)); }
double inner(double x) { return std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x); }
const Known kFunctions[] = {
    {"silu", ditto_cuda::Function::silu, [](double x) { return x * logistic(x); },
     [](double x) { return logistic(x) * (1 + x * (1 - logistic(x))); }, ditto_exact::kPlain.silu,
     ditto_exact::kPlain.silu_back},
    {"gelu, tanh", ditto_cuda::Function::gelu_tanh, [](double x) { return 0.5 * x * (1 + std::tanh(inner(x))); },
     [](double x) {
       const double t = std::tanh(inner(x));
       return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
     },
     ditto_exact::kPlain.gelu, ditto_exact::kPlain.gelu_back},
    {"gelu, error function", ditto_cuda::Function::gelu_erf,
     [](double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); },
     [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)) + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI); },
     ditto_exact::kPlain.gelu_erf, ditto_exact::kPlain.gelu_erf_back}};

// In fp32 with the bits of the CPU's exact kernels, too.
void function(const Known& known, const char* name, std::size_t n, double scale, std::size_t off = 0) {
  for (const auto storage : storages()) {
    Case c(known.name, name, storage);
    const Numbers x(storage, drawn(n + off, 1, scale)), g(storage, drawn(n + off, 2)), y(storage, n + off),
        dx(storage, n + off);
    const std::size_t skipped = off * size_of(storage);
    const auto at = [&](const Numbers& of) { return static_cast<char*>(of.at()) + skipped; };
    c.launched(ditto_cuda::apply(known.function, at(x), at(y), static_cast<Index>(n), storage, nullptr));
    c.launched(ditto_cuda::apply_back(known.function, at(x), at(g), at(dx), static_cast<Index>(n), storage, nullptr));
    const auto vx = x.read(), vg = g.read();
    const auto behind = [&](const Numbers& of) {
      auto all = of.read();
      all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(off));
      return Numbers(storage, all);
    };
    Reals want, want_dx;
    for (std::size_t i = off; i < n + off; ++i)
      want.push_back(known.of(vx[i])), want_dx.push_back(vg[i] * known.slope(vx[i]));
    const Numbers got(behind(y).storage(), behind(y).read()), got_dx(storage, behind(dx).read());
    c.expect("y", got, want);
    c.expect("dx", got_dx, want_dx);
    if (storage != Storage::fp32) continue;
    std::vector<float> single(vx.begin() + static_cast<std::ptrdiff_t>(off), vx.end()),
        of_y(vg.begin() + static_cast<std::ptrdiff_t>(off), vg.end()), exact(n), exact_dx(n);
    known.exact(single.data(), exact.data(), static_cast<Index>(n));
    known.exact_back(single.data(), of_y.data(), exact_dx.data(), static_cast<Index>(n));
    c.expect_bits("y beside exact", got.bytes().data(), exact.data(), n * 4);
    c.expect_bits("dx beside exact", got_dx.bytes().data(), exact_dx.data(), n * 4);
  }
}

void soft(const char* name, Index rows, Index width, double scale = 1) {
  const auto R = static_cast<std::size_t>(rows), D = static_cast<std::size_t>(width);
  for (const auto storage : storages()) {
    Case c("softmax", name, storage);
    const Numbers x(storage, drawn(R * D, 1, scale)), g(storage, drawn(R * D, 2)), y(storage, R * D),
        dx(storage, R * D);
    c.launched(ditto_cuda::softmax(x.at(), y.at(), rows, width, storage, nullptr));
    c.launched(ditto_cuda::softmax_back(y.at(), g.at(), dx.at(), rows, width, storage, nullptr));
    const auto vx = x.read(), vg = g.read(), vy = y.read();
    Reals want(R * D), want_dx(R * D);
    for (std::size_t r = 0; r < R; ++r) {
      double sum = 0, dot = 0;
      const double most = *std::max_element(vx.begin() + static_cast<std::ptrdiff_t>(r * D),
                                            vx.begin() + static_cast<std::ptrdiff_t>((r + 1) * D));
      for (std::size_t i = r * D; i < (r + 1) * D; ++i) sum += want[i] = std::exp(vx[i] - most);
      for (std::size_t i = r * D; i < (r + 1) * D; ++i) want[i] /= sum, dot += vg[i] * vy[i];
      for (std::size_t i = r * D; i < (r + 1) * D; ++i) want_dx[i] = vy[i] * (vg[i] - dot);
    }
    c.expect("y", y, want);
    c.expect("dx", dx, want_dx);
  }
}

}  // namespace

void rows() {
  gated("small", {2, 10}, 16);
  gated("odd width", {3, 21}, 37);
  gated("packed", {3, packed(3, 11, false)}, 64);
  gated("packed, in no order", {3, packed(3, 70, true)}, 48);
  gated("width of XL/2", {2, 2 * 35}, 1152);
  row_added("tokens", 27, 16);
  row_added("samples", 5, 37);
  row_added("two dims", 3, 32);
  row_added("a table of positions", 3, 5 * 1000);
  row_added("many rows", 700, 24);
  table("small", 7, 16, {0, 3, 6, 2, 5});
  table("repeated", 3, 37, {0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 2});
  std::vector<Index> many;
  for (Index i = 0; i < 300; ++i) many.push_back(i * i % 13);
  table("many", 14, 40, many);
  for (const auto& known : kFunctions) {
    function(known, "small", 160, 1);
    function(known, "odd", 111, 1);
    function(known, "large", 111, 100);
    function(known, "not aligned", 300, 3, 1);
    function(known, "many", 5001, 1);
  }
  soft("small", 10, 4);
  soft("odd", 3, 37);
  soft("one", 4, 1);
  soft("wide", 5, 1000, 3);
  soft("large", 5, 96, 6);
}

}  // namespace check
