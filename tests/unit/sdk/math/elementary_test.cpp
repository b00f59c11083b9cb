// Own exponentials, logarithms, sines and cosines, and the numbers made of them. ctest runs this file once more under
// each of the instruction sets that LibTorch and MKL know (tests/CMakeLists.txt): the digests below are of every
// machine.
//
// Claim (again): Draws, times, time features, tables of positions and schedules have the same bits under every
// instruction set of LibTorch and MKL, and golden numbers of DiT, PixArt, schedules, samplers, optimizers, every
// model and the caches hold under each. Also: the tests called `golden/*_avx2` and `golden/*_sse2` (those of models
// and caches with `--all`)
#include <cmath>
#include <limits>
#include <random>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <ditto/ditto.h>

#include "core/train/lr_schedule.h"
#include "tests/support/open_plugin.h"

using ditto::Scheduler;
using torch::Tensor;
namespace elementary = ditto::elementary;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// In units of the last place of `exact`.
double error(double found, long double exact) {
  const auto near = std::abs(static_cast<double>(exact));
  return static_cast<double>(std::abs(static_cast<long double>(found) - exact)) /
         (std::nextafter(near, kInfinity) - near);
}

template <class Check>
void draw(double low, double high, Check check) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 100'000; ++i) check(std::uniform_real_distribution<>(low, high)(random));
}

// FNV-1a over the bits.
std::string digest(const std::vector<Tensor>& tensors) {
  uint64_t hashed = 0xCBF29CE484222325u;
  for (const auto& tensor : tensors) {
    const auto whole = tensor.contiguous();
    const auto* byte = static_cast<const unsigned char*>(whole.const_data_ptr());
    for (size_t i = 0; i < whole.nbytes(); ++i) hashed = (hashed ^ byte[i]) * 0x100000001B3u;
  }
  return fmt::format("{:016x}", hashed);
}

Tensor doubles(const std::vector<double>& numbers) { return torch::tensor(numbers, torch::kDouble); }

std::shared_ptr<Scheduler> scheduler(const char* name, const std::map<std::string, ditto::OptionValue>& options = {}) {
  return ditto::test::make_plugin<Scheduler>("schedulers", name, options);
}

// All that a schedule tells of 50 times of training and of a grid.
std::vector<Tensor> numbers_of(const Scheduler& schedule) {
  std::vector<double> even;
  for (int i = 0; i < 50; ++i) even.push_back((i + 0.5) / 50);
  const Tensor t = schedule.times(doubles(even)), x = doubles(even).view({50, 1}), clean = x.flip(0);
  std::vector<Tensor> list{t,
                           schedule.alpha(t),
                           schedule.sigma(t),
                           schedule.c_noise(t),
                           doubles(schedule.time_grid(10)),
                           schedule.corrupt(clean, x, t)};
  if (!schedule.has_posterior()) return list;
  const auto grid = schedule.time_grid(10);
  const auto back = schedule.step_back(torch::cat({x, clean}, 1), x, grid, 4);
  list.insert(list.end(), {back.mean, back.log_variance});
  return list;
}

}  // namespace

TEST_CASE("exp, log, sine and cosine are right to three units in the last place") {
  double worst = 0;
  const auto take = [&](double found, long double exact) { worst = std::max(worst, error(found, exact)); };
  draw(-700, 700, [&](double x) { take(elementary::exp(x), std::exp(static_cast<long double>(x))); });
  draw(-2, 2, [&](double x) { take(elementary::exp(x), std::exp(static_cast<long double>(x))); });
  draw(-700, 700,
       [&](double x) { take(elementary::log(std::exp(x)), std::log(static_cast<long double>(std::exp(x)))); });
  draw(0.5, 2, [&](double x) { take(elementary::log(x), std::log(static_cast<long double>(x))); });
  for (const double most : {1.0, 1000.0, 1.6e6})
    draw(-most, most, [&](double x) {
      take(elementary::cos_sin(x).cos, std::cos(static_cast<long double>(x)));
      take(elementary::cos_sin(x).sin, std::sin(static_cast<long double>(x)));
    });
  CHECK(worst < 3);
  draw(1e6, 1e9, [&](double x) { CHECK(std::abs(elementary::cos_sin(x).cos - std::cos(x)) < 1e-16 * x); });
}

TEST_CASE("limits, and numbers that are none, are those of the C library") {
  const double nan = std::numeric_limits<double>::quiet_NaN(), least = std::numeric_limits<double>::denorm_min();
  CHECK(elementary::exp(0) == 1);
  CHECK(elementary::exp(-kInfinity) == 0);
  CHECK(elementary::exp(710.1) == kInfinity);
  CHECK(elementary::exp(-745) == least);
  CHECK(std::isnan(elementary::exp(nan)));
  CHECK(elementary::log(1) == 0);
  CHECK(elementary::log(0) == -kInfinity);
  CHECK(elementary::log(kInfinity) == kInfinity);
  CHECK(elementary::log(least) == doctest::Approx(std::log(least)).epsilon(1e-15));
  CHECK(std::isnan(elementary::log(-1)));
  CHECK(elementary::cos_sin(0).cos == 1);
  CHECK(elementary::cos_sin(0).sin == 0);
  CHECK(elementary::cos_sin_of_turn(0.25).sin == 1);
  CHECK(elementary::cos_sin_of_turn(0.5).cos == -1);
  for (const double x : {nan, kInfinity, -kInfinity}) CHECK(std::isnan(elementary::cos_sin(x).cos));
}

TEST_CASE("a normal quantile is what the distribution function makes its probability of") {
  for (const double p : {1e-300, 1e-12, 1e-5, 0.01, 0.074, 0.076, 0.3, 0.5, 0.6, 0.924, 0.926, 0.99, 0.9999999}) {
    CAPTURE(p);
    CHECK(0.5 * std::erfc(-elementary::normal_quantile(p) / std::sqrt(2.0)) == doctest::Approx(p).epsilon(1e-12));
  }
}

TEST_CASE("every time feature is the nearest float to what published code computes") {
  const std::vector<float> times{0, 0.5f, 1, 17.5f, 250.25f, 701, 999, 1000, 123456};
  for (const double divisor : {127.0, 128.0}) {
    const auto features = ditto::timestep_features(torch::tensor(times), 128, divisor);
    for (size_t b = 0; b < times.size(); ++b)
      for (int i = 0; i < 128; ++i) {
        const float exponent =
            static_cast<float>(i) * static_cast<float>(-std::log(10000.0)) / static_cast<float>(divisor);
        const auto angle =
            static_cast<long double>(times[b] * static_cast<float>(std::exp(static_cast<long double>(exponent))));
        const auto row = static_cast<int64_t>(b);
        CHECK(features[row][i].item<float>() == static_cast<float>(std::cos(angle)));
        CHECK(features[row][i + 128].item<float>() == static_cast<float>(std::sin(angle)));
      }
  }
}

TEST_CASE("features, tables, schedules and draws have the same bits on every machine") {
  const auto times = torch::tensor({0.0f, 0.5f, 17.5f, 250.25f, 701.0f, 999.0f});
  CHECK(digest({ditto::timestep_features(times, 128, 128), ditto::timestep_features(times, 128, 127)}) ==
        "966e9c26fe179602");
  CHECK(digest({ditto::sincos_positions({1, 16, 12}, 96), ditto::sincos_positions(9, 48)}) == "cfe08d6e1f29b3d0");
  CHECK(digest({ditto::rotary_table({3, 8, 12}, 64), ditto::rotary_table({1, 8, 12}, 64),
                ditto::rotary_table({5, 2, 2}, {8, 0, 0})}) == "eeea4c3431ed9749");
  CHECK(digest(numbers_of(*scheduler("iddpm"))) == "ff30f0444f9fedc9");
  CHECK(digest(numbers_of(*scheduler("rectified_flow"))) == "b2a160b9f43d1112");
  CHECK(digest(numbers_of(*scheduler("rectified_flow", {{"times", std::string("logit_normal")}, {"shift", 3.0}}))) ==
        "586b228d3bc13823");
  std::vector<double> rates;
  const ditto::LrSchedule cosine({.kind = "cosine", .lr = 1e-3, .warmup = 5}, 100);
  for (int64_t step = 0; step < 100; ++step) rates.push_back(cosine.at(step));
  CHECK(digest({doubles(rates)}) == "620dc4b23e6cd2fb");
  const std::array<int64_t, 3> ids{0, 7, int64_t{1} << 40};
  CHECK(digest({ditto::Random(5).normal(ditto::Purpose::noise, ids, {3, 33}),
                ditto::Random(5).uniform(ditto::Purpose::time, ids, {})}) == "c3a0e2e925b7329a");
}
