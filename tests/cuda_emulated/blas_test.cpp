// Products by cublasLt beside sums in fp64: as a GPU's library computes them, or the CPU's in its place.
#include "blas.h"

#include <cmath>
#include <map>
#include <numbers>
#include <string>

#include <ditto/error.h>

#include "check.h"

namespace check {

namespace {

using ditto_cuda::After;
using ditto_cuda::Blas;
using ditto_cuda::Product;

double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}
double slope(double x) {
  const double root = std::sqrt(2 / std::numbers::pi);
  const double t = std::tanh(root * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x);
}

Reals turned(const Reals& x, std::size_t rows, std::size_t columns) {
  Reals y(x.size());
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < columns; ++j) y[j * rows + i] = x[i * columns + j];
  return y;
}

struct Way {
  bool a_turned, b_turned, wide;  // wide: the result is stored in fp32
  After after;
  bool adds = false;  // to what is there
};

void multiplied(Blas& blas, const char* name, Index M, Index N, Index K, const Way& way) {
  const auto m = static_cast<std::size_t>(M), n = static_cast<std::size_t>(N), k = static_cast<std::size_t>(K);
  const double small = 1 / std::sqrt(static_cast<double>(K));
  for (const auto storage : storages()) {
    Case c("product", name, storage);
    const auto result = way.wide ? Storage::fp32 : storage;
    const Numbers A(storage, drawn(m * k, 1)), B(storage, drawn(k * n, 2, small)), bias(result, drawn(n, 3)),
        given(result, drawn(m * n, 4)), D(way.adds ? Numbers(result, drawn(m * n, 5)) : Numbers(result, m * n)),
        argument(result, m * n), sums(result, m + n);
    const bool backward = way.after == After::gelu_back;
    Product p{M, N, K, A.at(), B.at(), way.a_turned, way.b_turned, D.at(), storage, result};
    p.after = way.after, p.bias = bias.at(), p.argument = backward ? given.at() : argument.at(), p.sums = sums.at();
    p.adds = way.adds;
    const auto before = D.read();
    const auto room = blas.room(p);
    if (!room) {
      c.fail("cublasLt has no algorithm for it");
      continue;
    }
    const Array<unsigned char> memory(*room);
    c.launched(blas.multiply(p, memory.at(), nullptr));
    const auto a = way.a_turned ? turned(A.read(), k, m) : A.read(),
               b = way.b_turned ? turned(B.read(), n, k) : B.read(), h = given.read(), plus = bias.read();
    Reals want(m * n, 0), of_argument(m * n), of_rows(m, 0), of_columns(n, 0);
    for (std::size_t i = 0; i < m; ++i)
      for (std::size_t j = 0; j < n; ++j) {
        double& x = want[i * n + j];
        if (way.adds) x = before[i * n + j];
        for (std::size_t l = 0; l < k; ++l) x += a[i * k + l] * b[l * n + j];
        if (way.after == After::bias || way.after == After::gelu) x += plus[j];
        of_argument[i * n + j] = x;
        if (way.after == After::gelu) x = gelu(x);
        if (backward) of_columns[j] += x *= slope(h[i * n + j]);
      }
    for (std::size_t i = 0; i < m; ++i)
      for (std::size_t l = 0; l < k; ++l) of_rows[i] += a[i * k + l];
    c.expect("D", D, want);
    if (way.after == After::gelu) c.expect("argument", argument, of_argument);
    if (backward || way.after == After::sums_of_a) {
      const auto& all = backward ? of_columns : of_rows;
      const auto got = sums.read();
      c.expect("sums", Numbers(result, Reals(got.begin(), got.begin() + static_cast<std::ptrdiff_t>(all.size()))), all);
    }
  }
}

// A second Blas takes what the first one kept, and refuses what its cublasLt does not know.
void kept() {
  Case c("product", "kept algorithms", Storage::fp32);
  const Numbers A(Storage::fp32, drawn(64, 1)), D(Storage::fp32, std::size_t{64});
  const Product p{8, 8, 8, A.at(), A.at(), false, false, D.at(), Storage::fp32, Storage::fp32};
  using Kept = std::map<std::string, std::string>;
  const std::string shape = "8 8 8 A B fp32 -> fp32 nothing";
  const auto refuses = [&](const std::string& text) {
    try {
      Blas(Kept{{shape, text}}, "of_the_test").room(p);
    } catch (const ditto::Error& error) {
      const std::string said = error.what();
      return said.find("--allow-change kernels.of_the_test") != std::string::npos &&
             said.find(shape) != std::string::npos;
    }
    return false;
  };
  Blas chooses;
  if (!chooses.kept().empty()) c.fail("something is kept before there was a product");
  const auto room = chooses.room(p);
  const auto first = chooses.kept();
  if (!room || first.size() != 1 || first.begin()->first != shape) {
    c.fail("it is not kept");
    return;
  }
  Blas goes_on(first);
  if (goes_on.kept() != first) c.fail("what is kept is lost before its product comes");
  auto wider = first.at(shape);
  wider.replace(wider.find(' ') + 1, 1, "7");  // another room than would be chosen, and still one that serves
  if (Blas(Kept{{shape, wider}}).room(p) == room) c.fail("it is chosen again");
  if (goes_on.room(p) != room || goes_on.kept() != first) c.fail("it is kept otherwise");
  auto other = first.at(shape);
  other[0] = other[0] == '9' ? '8' : '9';
  if (!refuses(other)) c.fail("an algorithm of another cublasLt is taken");
  if (!refuses("1")) c.fail("a line without an algorithm is taken");
}

}  // namespace

void library_products() {
  Blas blas;
  // Of a layer: its output, its input's gradient, its weight's gradient.
  multiplied(blas, "output", 20, 24, 16, {false, true, false, After::bias});
  multiplied(blas, "output, odd", 21, 41, 37, {false, true, false, After::bias});
  multiplied(blas, "output, no bias", 18, 24, 16, {false, true, false, After::nothing});
  multiplied(blas, "output and GELU", 21, 48, 37, {false, true, false, After::gelu});
  multiplied(blas, "gradient of the input", 27, 16, 24, {false, false, false, After::nothing});
  multiplied(blas, "gradient of the input, odd", 21, 37, 41, {false, false, false, After::nothing});
  multiplied(blas, "gradient through GELU", 21, 48, 37, {false, false, false, After::gelu_back});
  multiplied(blas, "gradient of weight and bias", 24, 16, 300, {true, false, true, After::sums_of_a});
  multiplied(blas, "gradient of weight and bias, added", 24, 16, 300, {true, false, true, After::sums_of_a, true});
  multiplied(blas, "gradient of the weight, odd", 41, 37, 201, {true, false, true, After::nothing});
  kept();
  // The width of GELU's argument is a multiple of 8.
  Case c("product", "GELU of an odd width", Storage::bf16);
  const Numbers x(Storage::bf16, std::size_t{64});
  if (blas.room(
          {2, 9, 2, x.at(), x.at(), false, true, x.at(), Storage::bf16, Storage::bf16, After::gelu, x.at(), x.at()}))
    c.fail("is taken");
}

}  // namespace check
