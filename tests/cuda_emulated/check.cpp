#include "check.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

namespace check {

namespace {

int failures = 0;
std::vector<Storage> chosen{Storage::fp32, Storage::bf16, Storage::fp16};

std::uint16_t bf16_bits(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
float from_bf16(std::uint16_t half) {
  const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
// The largest relative error of one rounding.
double unit(Storage storage) {
  return storage == Storage::fp32 ? std::ldexp(1, -24) : std::ldexp(1, storage == Storage::bf16 ? -8 : -11);
}
// Half of the distance between the smallest numbers.
double least(Storage storage) { return storage == Storage::fp16 ? std::ldexp(1, -25) : 0; }

}  // namespace

const std::vector<Storage>& storages() { return chosen; }
bool only(const std::string& name) {
  for (const auto storage : {Storage::fp32, Storage::bf16, Storage::fp16})
    if (name == name_of(storage)) return chosen = {storage}, true;
  return false;
}

const char* name_of(Storage storage) {
  return storage == Storage::fp32 ? "fp32" : storage == Storage::bf16 ? "bf16" : "fp16";
}

double rounded(double x, Storage storage) {
  const auto single = static_cast<float>(x);
  if (storage == Storage::fp32) return single;
  return storage == Storage::bf16 ? from_bf16(bf16_bits(single)) : static_cast<float>(static_cast<_Float16>(single));
}

Reals drawn(std::size_t count, unsigned which, double scale) {
  Reals all(count);
  std::uint64_t state = 0x9e3779b97f4a7c15ull * (which + 1);
  for (auto& x : all) {
    double sum = 0;
    for (int i = 0; i < 6; ++i) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      sum += static_cast<double>(state >> 40) * 0x1p-24 - 0.5;
    }
    x = sum * scale * 1.4142135623730951;
  }
  return all;
}

Numbers::Numbers(Storage storage, const Reals& from) : Numbers(storage, from.size()) {
  std::vector<unsigned char> bytes(from.size() * size_of(storage));
  for (std::size_t i = 0; i < from.size(); ++i) {
    const auto single = static_cast<float>(from[i]);
    if (storage == Storage::fp32) {
      std::memcpy(&bytes[4 * i], &single, 4);
      continue;
    }
    const auto half = static_cast<_Float16>(single);
    std::uint16_t bits = bf16_bits(single);
    if (storage == Storage::fp16) std::memcpy(&bits, &half, 2);
    std::memcpy(&bytes[2 * i], &bits, 2);
  }
  device::up(bytes_.at(), bytes.data(), bytes.size());
}

Reals Numbers::read() const {
  const auto bytes = bytes_.read();
  Reals all(bytes.size() / size_of(storage_));
  for (std::size_t i = 0; i < all.size(); ++i) {
    float single;
    _Float16 half;
    std::uint16_t bits;
    if (storage_ == Storage::fp32)
      std::memcpy(&single, &bytes[4 * i], 4), all[i] = single;
    else if (storage_ == Storage::bf16)
      std::memcpy(&bits, &bytes[2 * i], 2), all[i] = from_bf16(bits);
    else
      std::memcpy(&half, &bytes[2 * i], 2), all[i] = static_cast<double>(half);
  }
  return all;
}

Case::Case(std::string kernel, std::string name, Storage storage)
    : text_(std::move(kernel) + ", " + std::move(name) + ", " + name_of(storage) + ":") {}

Case::~Case() {
  std::printf("%s bits %016llx%s%s\n", text_.c_str(), static_cast<unsigned long long>(hash_),
              failures_.empty() ? " ok" : " WRONG:", failures_.c_str());
  std::fflush(stdout);
  failures += !failures_.empty();
}

int Case::failed() { return failures; }
void Case::fail(const std::string& why) { failures_ += " " + why + ";"; }
void Case::launched(int status) {
  if (status) fail("not launched, error " + std::to_string(status));
}

void Case::hash(const void* bytes, std::size_t count) {
  const auto* at = static_cast<const unsigned char*>(bytes);
  for (std::size_t i = 0; i < count; ++i) hash_ = (hash_ ^ at[i]) * 1099511628211ull;
}

void Case::compare(const char* what, const Reals& got, const Reals& want, Storage storage) {
  if (got.size() != want.size()) return fail(std::string(what) + " has another size");
  double largest = 0, worst = 0, error = 0;
  for (const double x : want) largest = std::max(largest, std::abs(x));
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double off = std::abs(got[i] - want[i]);
    const double allowed = 1e-6 * largest + unit(storage) * std::abs(want[i]) + least(storage);
    if (!(off <= allowed)) worst = std::max(worst, off == off ? off / allowed : 1e300);
    error = std::max(error, off / (largest > 0 ? largest : 1));
  }
  char text[96];
  std::snprintf(text, sizeof text, " %s %.1e", what, error);
  text_ += text;
  std::snprintf(text, sizeof text, "%s is %.2g times as far off as allowed", what, worst);
  if (worst > 0) fail(text);
}

void Case::expect(const char* what, const Numbers& got, const Reals& want) {
  const auto bytes = got.bytes();
  hash(bytes.data(), bytes.size());
  compare(what, got.read(), want, got.storage());
}
void Case::expect(const char* what, const Array<float>& got, const Reals& want) {
  const auto numbers = got.read();
  hash(numbers.data(), numbers.size() * sizeof(float));
  compare(what, Reals(numbers.begin(), numbers.end()), want, Storage::fp32);
}
void Case::expect_bits(const char* what, const void* got, const void* want, std::size_t bytes) {
  hash(got, bytes);
  std::size_t differ = 0;
  for (std::size_t i = 0; i < bytes; ++i)
    differ += static_cast<const unsigned char*>(got)[i] != static_cast<const unsigned char*>(want)[i];
  if (differ > 0) fail(std::string(what) + " differs in " + std::to_string(differ) + " bytes");
}

}  // namespace check
