#include "numbers.h"

#include <limits>

#include <fmt/format.h>

#include <ditto/math/random.h>

namespace ditto::testing {

using torch::Tensor;

namespace {

int64_t id_of(const std::string& name) {
  std::uint64_t hash = 0xCBF29CE484222325ull;  // FNV-1a
  for (const unsigned char c : name) hash = (hash ^ c) * 0x100000001B3ull;
  return static_cast<int64_t>(hash);
}

}  // namespace

Tensor normal(const std::string& name, const std::vector<int64_t>& shape, at::ScalarType dtype) {
  const int64_t id[] = {id_of(name)};
  return Random(1).normal(Purpose::validation, id, shape, at::kDouble).squeeze(0).to(dtype);
}

Tensor uniform(const std::string& name, const std::vector<int64_t>& shape) {
  const int64_t id[] = {id_of(name)};
  return Random(1).uniform(Purpose::validation, id, shape).squeeze(0);
}

double error_of(const Tensor& found, const Tensor& expected) {
  torch::NoGradGuard no_grad;
  const auto a = found.detach().to(at::kCPU, at::kDouble), b = expected.detach().to(at::kCPU, at::kDouble);
  if (a.numel() == 0) return 0;
  const double most = b.abs().max().item<double>();
  const double error = (a - b).abs().max().item<double>() / (most > 0 ? most : 1);
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

std::string difference(const Tensor& found, const Tensor& expected, double tolerance) {
  if (!found.defined() || !expected.defined()) return found.defined() == expected.defined() ? "" : "one is undefined";
  if (found.sizes() != expected.sizes())
    return "the shape is " + shape_text(found.sizes()) + ", expected " + shape_text(expected.sizes());
  if (tolerance == 0 && found.equal(expected)) return {};
  const double error = error_of(found, expected);
  if (tolerance > 0 && error <= tolerance) return {};
  return "differs by " + text(error) + " of the largest number" +
         (tolerance > 0 ? ", allowed are " + text(tolerance) : ", expected the same bits");
}

std::string not_finite(const Tensor& found) {
  if (!found.defined()) return "is undefined";
  return torch::isfinite(found).all().item<bool>() ? "" : "has numbers that are not finite";
}

std::string misfit(const Tensor& found, const TensorSpec& spec) {
  if (!found.defined()) return "\"" + spec.name + "\" is missing";
  if (found.scalar_type() != spec.dtype)
    return "\"" + spec.name + "\" is " + c10::toString(found.scalar_type()) + ", makes() says " +
           c10::toString(spec.dtype);
  bool same = found.dim() == static_cast<int64_t>(spec.shape.size());
  for (size_t i = 0; same && i < spec.shape.size(); ++i)
    same = spec.shape[i] < 0 || spec.shape[i] == found.size(static_cast<int64_t>(i));
  if (!same)
    return "\"" + spec.name + "\" has shape " + shape_text(found.sizes()) + ", makes() says " + shape_text(spec.shape);
  if (found.is_floating_point() && spec.range == "-1 … 1" && (found.abs() > 1).any().item<bool>())
    return "\"" + spec.name + "\" leaves -1 … 1";
  return found.is_floating_point() ? not_finite(found) : "";
}

std::string text(double value) { return fmt::format("{:.3g}", value); }

std::string first_line(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string all = of_torch ? of_torch->what_without_backtrace() : error.what();
  return all.substr(0, all.find('\n'));
}

std::string shape_text(at::IntArrayRef shape) {
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "[" : ", ") + std::to_string(size);
  return text.empty() ? "[]" : text + "]";
}

}  // namespace ditto::testing
