#include <ditto/math/elementary.h>

#include <bit>
#include <cmath>
#include <limits>

#include <ATen/Functions.h>

#include <ditto/math/threads.h>

namespace ditto::elementary {

namespace {

constexpr int64_t kGrain = 1 << 14;  // elements a thread takes at least
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// pi/2 and ln 2 in parts: the products of the first ones with whole numbers below 2^20 are exact.
constexpr double kQuarter[] = {0x1.921fb544p+0, 0x1.0b4611a6p-34, 0x1.3198a2e037073p-69};
constexpr double kLn2[] = {0x1.62e42fee00000p-1, 0x1.a39ef35793c76p-33};
constexpr double kMostQuarters = 0x1p20;

template <size_t n>
double polynomial(const double (&coefficients)[n], double x) {  // the highest power first
  double sum = coefficients[0];
  for (size_t i = 1; i < n; ++i) sum = sum * x + coefficients[i];
  return sum;
}

// Of `quarters` quarter turns and r, -pi/4 … pi/4 radians: Taylor polynomials.
CosSin turned(int64_t quarters, double r) {
  static constexpr double kCosines[] = {1.0 / 20922789888000.0,
                                        -1.0 / 87178291200.0,
                                        1.0 / 479001600.0,
                                        -1.0 / 3628800.0,
                                        1.0 / 40320.0,
                                        -1.0 / 720.0,
                                        1.0 / 24.0,
                                        -0.5,
                                        1.0};
  static constexpr double kSines[] = {-1.0 / 1307674368000.0, 1.0 / 6227020800.0, -1.0 / 39916800.0, 1.0 / 362880.0,
                                      -1.0 / 5040.0,          1.0 / 120.0,        -1.0 / 6.0,        1.0};
  const double z = r * r, c = polynomial(kCosines, z), s = polynomial(kSines, z) * r;
  switch (quarters & 3) {
    case 0: return {c, s};
    case 1: return {-s, c};
    case 2: return {-c, -s};
    default: return {s, -c};
  }
}

// exp(r) - 1 of |r| < ln 2 / 2.
double small_expm1(double r) {
  static constexpr double kSeries[] = {1.0 / 6227020800.0, 1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0,
                                       1.0 / 362880.0,     1.0 / 40320.0,     1.0 / 5040.0,     1.0 / 720.0,
                                       1.0 / 120.0,        1.0 / 24.0,        1.0 / 6.0,        0.5};
  return r + r * r * polynomial(kSeries, r);
}

// --- Wichura's rational functions: numerator and denominator, the highest power first ---

double near_the_middle(double q) {
  static constexpr double kAbove[] = {2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4,
                                      4.5921953931549871457e4, 1.3731693765509461125e4, 1.9715909503065514427e3,
                                      1.3314166789178437745e2, 3.3871328727963666080e0};
  static constexpr double kBelow[] = {
      5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4,
      5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0};
  const double r = 0.180625 - q * q;
  return q * polynomial(kAbove, r) / polynomial(kBelow, r);
}

double in_the_tail(double r) {  // r <= 5
  static constexpr double kAbove[] = {7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1,
                                      1.27045825245236838258e0,  3.64784832476320460504e0,  5.76949722146069140550e0,
                                      4.63033784615654529590e0,  1.42343711074968357734e0};
  static constexpr double kBelow[] = {
      1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
      6.89767334985100004550e-1, 1.67638483018380384940e0,  2.05319162663775882187e0,  1.0};
  return polynomial(kAbove, r - 1.6) / polynomial(kBelow, r - 1.6);
}

double far_out(double r) {
  static constexpr double kAbove[] = {2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3,
                                      2.65321895265761230930e-2, 2.96560571828504891230e-1, 1.78482653991729133580e0,
                                      5.46378491116411436990e0,  6.65790464350110377720e0};
  static constexpr double kBelow[] = {
      2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5, 7.86869131145613259100e-4,
      1.48753612908506148525e-2,  1.36929880922735805310e-1, 5.99832206555887937690e-1, 1.0};
  return polynomial(kAbove, r - 5) / polynomial(kBelow, r - 5);
}

}  // namespace

double exp(double x) {
  if (std::isnan(x)) return x;
  if (x > 710) return kInfinity;
  if (x < -746) return 0;
  const double k = std::floor(x * 1.4426950408889634 + 0.5);
  const double r = (x - k * kLn2[0]) - k * kLn2[1];
  return std::ldexp(1 + small_expm1(r), static_cast<int>(k));
}

double expm1(double x) { return std::abs(x) < 0.34 ? small_expm1(x) : exp(x) - 1; }

// The mantissa around 1, then the series of atanh.
double log(double x) {
  if (std::isnan(x) || x < 0) return std::numeric_limits<double>::quiet_NaN();
  if (x == 0) return -kInfinity;
  if (x == kInfinity) return x;
  if (x < std::numeric_limits<double>::min()) return log(x * 0x1p54) - 54 * 0.6931471805599453;
  const auto bits = std::bit_cast<std::uint64_t>(x);
  auto exponent = static_cast<int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xFFFFFFFFFFFFFull) | 0x3FF0000000000000ull);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1) / (m + 1), z = s * s;
  double sum = 1.0 / 21;
  for (int k = 19; k >= 1; k -= 2) sum = sum * z + 1.0 / k;
  return 2 * s * sum + static_cast<double>(exponent) * 0.6931471805599453;
}

double power(double base, int64_t n) {
  double result = 1;
  for (; n > 0; n >>= 1, base *= base)
    if (n & 1) result *= base;
  return result;
}

CosSin cos_sin(double x) {
  if (!std::isfinite(x)) return {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN()};
  if (std::abs(x) >= kMostQuarters * kQuarter[0]) x = std::fmod(x, 6.283185307179586);  // exact, on every machine
  const double quarters = std::floor(x * 0.6366197723675814 + 0.5);
  const double r = ((x - quarters * kQuarter[0]) - quarters * kQuarter[1]) - quarters * kQuarter[2];
  return turned(static_cast<int64_t>(quarters), r);
}

CosSin cos_sin_of_turn(double turns) {
  const auto quarters = static_cast<int>(4 * turns + 0.5);
  return turned(quarters, (4 * turns - quarters) * 1.5707963267948966);
}

double normal_quantile(double p) {
  const double q = p - 0.5;
  if (std::abs(q) <= 0.425) return near_the_middle(q);
  const double r = std::sqrt(-log(q < 0 ? p : 1 - p));
  const double x = r <= 5 ? in_the_tail(r) : far_out(r);
  return q < 0 ? -x : x;
}

std::vector<double> even_steps(double first, double last, int64_t count) {
  std::vector<double> steps;
  for (int64_t i = 0; i < count; ++i)
    steps.push_back(first +
                    (last - first) * static_cast<double>(i) / static_cast<double>(std::max<int64_t>(count - 1, 1)));
  return steps;
}

torch::Tensor map(const torch::Tensor& x, const std::function<double(double)>& f) {
  const auto result = x.to(torch::kCPU, torch::kDouble).clone(at::MemoryFormat::Contiguous);
  auto* numbers = result.mutable_data_ptr<double>();
  in_threads(result.numel(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) numbers[i] = f(numbers[i]);
  });
  return result.to(x.device());
}

}  // namespace ditto::elementary
