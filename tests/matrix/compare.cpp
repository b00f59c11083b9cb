#include "tests/matrix/compare.h"

#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <torch/torch.h>

namespace ditto::matrix {

using torch::Tensor;

namespace {

// Where the keys' part of a bias lies: of a layer that makes q, k and v, or k and v.
std::pair<double, double> key_part(const std::string& name, const Case& one) {
  for (const auto& ending : key_biases(one.model))
    if (name.ends_with(ending)) return name.ends_with("qkv.bias") ? std::pair(1.0 / 3, 2.0 / 3) : std::pair(0.0, 0.5);
  return {0, 0};
}

Tensor without_key_bias(const std::string& name, const Tensor& tensor, const Case& one) {
  const auto [begin, end] = key_part(name, one);
  if (end == 0) return tensor;
  const auto n = static_cast<double>(tensor.numel());
  const auto first = std::llround(begin * n), last = std::llround(end * n);
  return torch::cat({tensor.narrow(0, 0, first), tensor.narrow(0, last, tensor.numel() - last)});
}

double relative(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes()) return INFINITY;
  if (a.numel() == 0) return 0;
  const auto wide_a = a.to(torch::kDouble), wide_b = b.to(torch::kDouble);
  const auto largest = wide_b.abs().max().item<double>(), difference = (wide_a - wide_b).abs().max().item<double>();
  const auto result = largest > 0 ? difference / largest : difference;
  return std::isfinite(result) ? result : INFINITY;
}

double relative(double a, double b) {
  const double result = std::abs(a - b) / std::max(std::abs(b), 1e-300);
  return std::isfinite(result) ? result : INFINITY;
}

using Tensors = std::map<std::string, Tensor>;

void compare_tensors(const Tensors& mine, const Tensors& theirs, const Case& one, const char* what, Worst& worst,
                     Figures& figures) {
  for (const auto& [name, tensor] : mine) {
    const auto other = theirs.find(name);
    if (other == theirs.end()) {
      worst.take(INFINITY, name + " (one rank has none)");
      continue;
    }
    if (!torch::equal(tensor, other->second) && figures.same_bits) {
      figures.same_bits = false;
      figures.first_difference = std::string(what) + " " + name;
    }
    worst.take(relative(without_key_bias(name, tensor, one), without_key_bias(name, other->second, one)), name);
  }
}

void compare_numbers(const std::vector<double>& mine, const std::vector<double>& theirs, const char* what, Worst& worst,
                     Figures& figures) {
  if (mine.size() != theirs.size()) worst.take(INFINITY, "another number of steps");
  for (size_t i = 0; i < std::min(mine.size(), theirs.size()); ++i) {
    if (mine[i] != theirs[i] && figures.same_bits) {
      figures.same_bits = false;
      figures.first_difference = fmt::format("{} of step {}", what, i + 1);
    }
    worst.take(relative(mine[i], theirs[i]), fmt::format("step {}", i + 1));
  }
}

std::string squares_of(const Tensors& parameters, const Case& one) {
  std::string text;
  for (const auto& [name, tensor] : parameters)
    text += fmt::format("square {:a} {}\n",
                        without_key_bias(name, tensor, one).to(torch::kDouble).square().sum().item<double>(), name);
  return text;
}

// What ranks tell one another: "kind number name" a line.
std::string as_lines(const Figures& f) {
  std::string text;
  const auto add = [&](const char* kind, const Worst& worst) {
    if (!worst.name.empty()) text += fmt::format("{} {:a} {}\n", kind, worst.value, worst.name);
  };
  add("loss", f.loss), add("norm", f.norm), add("gradient", f.gradient), add("parameter", f.parameter);
  add("average", f.average);
  if (!f.same_bits) text += "bits 0 " + f.first_difference + "\n";
  return text;
}

double norm_of(const std::map<std::string, double>& squares) {
  double sum = 0;
  for (const auto& [name, square] : squares) sum += square;
  return std::sqrt(sum);
}

}  // namespace

void Worst::take(double candidate, const std::string& candidate_name) {
  if (!(candidate > value) && !name.empty()) return;
  value = candidate;
  name = candidate_name;
}

Figures compare(const Record& mine, const Record& theirs, const Case& one, const Mesh& mesh) {
  Figures here;
  const auto later = [&](const std::vector<double>& numbers) {
    return std::vector<double>(numbers.begin() + one.resumed, numbers.end());
  };
  compare_numbers(mine.losses, later(theirs.losses), "loss", here.loss, here);
  compare_numbers(mine.norms, later(theirs.norms), "norm", here.norm, here);
  if (one.resumed == 0) compare_tensors(mine.gradients, theirs.gradients, one, "gradient", here.gradient, here);
  compare_tensors(mine.parameters, theirs.parameters, one, "parameter", here.parameter, here);
  compare_tensors(mine.average, theirs.average, one, "average", here.average, here);

  Figures all;
  const std::map<std::string, Worst*> worsts{{"loss", &all.loss},
                                             {"norm", &all.norm},
                                             {"gradient", &all.gradient},
                                             {"parameter", &all.parameter},
                                             {"average", &all.average}};
  std::map<std::string, double> squares, one_rank_squares;
  for (const auto& text : mesh.world().all_gather_text(as_lines(here) + squares_of(mine.parameters, one))) {
    std::istringstream lines(text);
    std::string kind, number, name;
    while (lines >> kind >> number && std::getline(lines >> std::ws, name)) {
      const double value = std::strtod(number.c_str(), nullptr);
      if (kind == "square") {
        squares[name] = value;
      } else if (kind == "bits") {
        all.same_bits = false;
        if (all.first_difference.empty()) all.first_difference = name;
      } else {
        worsts.at(kind)->take(value, name);
      }
    }
  }
  for (const auto& [name, tensor] : theirs.parameters) {
    if (!squares.count(name)) all.missing = name;
    one_rank_squares[name] = without_key_bias(name, tensor, one).to(torch::kDouble).square().sum().item<double>();
  }
  all.weights_norm = relative(norm_of(squares), norm_of(one_rank_squares));
  return all;
}

double loss_difference(const Record& a, const Record& b) {
  Worst worst;
  Figures unused;
  compare_numbers(a.losses, b.losses, "loss", worst, unused);
  return worst.value;
}

std::string verdict(const Figures& f, const Case& one, double half_loss) {
  if (!f.missing.empty()) return "no rank holds " + f.missing;
  if (one.bits) return f.same_bits ? "" : "other bits: " + f.first_difference;
  const auto check = [](const char* what, double value, const std::string& name, double bound) {
    return value <= bound
               ? ""
               : fmt::format("{} differs by {:.1e} > {:.0e}{}{}", what, value, bound, name.empty() ? "" : " in ", name);
  };
  if (one.precision == "bf16" || one.precision == "fp16")
    return check("loss", f.loss.value, f.loss.name, 3 * half_loss);
  const bool proof = one.precision == "fp64";
  const double bound = proof ? 1e-12 : 1e-6;
  std::vector<std::string> found{check("loss", f.loss.value, f.loss.name, bound),
                                 check("norm", f.norm.value, f.norm.name, bound),
                                 check("weights' 2-norm", f.weights_norm, "", bound)};
  if (proof) {
    found.push_back(check("gradient", f.gradient.value, f.gradient.name, bound));
    found.push_back(check("parameter", f.parameter.value, f.parameter.name, bound));
    found.push_back(check("average", f.average.value, f.average.name, bound));
  }
  std::string text;
  for (const auto& line : found)
    if (!line.empty()) text += (text.empty() ? "" : "; ") + line;
  return text;
}

std::string to_text(const Figures& f) {
  if (f.same_bits) return "same bits";
  const auto show = [](const char* what, const Worst& worst) {
    return worst.name.empty() ? "" : fmt::format("{} {:.0e} ", what, worst.value);
  };
  return show("loss", f.loss) + show("norm", f.norm) + show("gradient", f.gradient) + show("weight", f.parameter) +
         show("ema", f.average) + fmt::format("2-norm {:.0e}", f.weights_norm);
}

}  // namespace ditto::matrix
