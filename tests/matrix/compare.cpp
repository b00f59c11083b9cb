#include "tests/matrix/compare.h"

#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <torch/types.h>

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

double finite(double x) { return std::isfinite(x) ? x : INFINITY; }

// Element by element, to the largest entry.
double relative(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes()) return INFINITY;
  if (a.numel() == 0) return 0;
  const auto wide_a = a.to(torch::kDouble), wide_b = b.to(torch::kDouble);
  const auto largest = wide_b.abs().max().item<double>(), difference = (wide_a - wide_b).abs().max().item<double>();
  return finite(largest > 0 ? difference / largest : difference);
}

// Of 2-norms.
double distance(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes()) return INFINITY;
  const auto wide_b = b.to(torch::kDouble);
  const auto norm = wide_b.norm().item<double>(), difference = (a.to(torch::kDouble) - wide_b).norm().item<double>();
  return finite(norm > 0 ? difference / norm : difference);
}

double relative(double a, double b) { return finite(std::abs(a - b) / std::max(std::abs(b), 1e-300)); }

struct NumbersKind {
  const char* name;
  std::vector<double> Record::*numbers;
  Worst Figures::*worst;
};
constexpr NumbersKind kNumbers[] = {{"loss", &Record::losses, &Figures::loss},
                                    {"norm", &Record::norms, &Figures::norm},
                                    {"validation", &Record::validation, &Figures::validation}};
struct TensorsKind {
  const char* name;
  Tensors Record::*tensors;
  Worst Figures::*worst;
};
constexpr TensorsKind kTensors[] = {{"gradient", &Record::gradients, &Figures::gradient},
                                    {"parameter", &Record::parameters, &Figures::parameter},
                                    {"average", &Record::average, &Figures::average},
                                    {"state", &Record::state, &Figures::state}};

Worst furthest(const std::vector<double>& mine, const std::vector<double>& theirs) {
  Worst worst;
  if (mine.size() != theirs.size()) worst.take(INFINITY, "another number of them");
  for (size_t i = 0; i < std::min(mine.size(), theirs.size()); ++i)
    worst.take(relative(mine[i], theirs[i]), std::to_string(i + 1));
  return worst;
}

// The steps that both made. A run whose routers are told what to pick cannot be told it of held-out samples.
std::vector<double> compared(const NumbersKind& kind, const Record& record, const Case& one, bool is_whole_run) {
  const auto& all = record.*kind.numbers;
  if (kind.worst == &Figures::validation) return one.is_validated() ? all : std::vector<double>();
  return {all.begin() + (is_whole_run ? one.resumed : 0), all.end()};
}

void note_difference(Figures& figures, const std::string& what) {
  if (figures.same_bits) figures.first_difference = what;
  figures.same_bits = false;
}

void compare_numbers(const NumbersKind& kind, const Record& mine, const Record& theirs, const Record* wide,
                     const Case& one, Figures& figures) {
  const auto here = compared(kind, mine, one, false), there = compared(kind, theirs, one, true);
  auto worst = furthest(here, there);
  if (here != there) note_difference(figures, std::string(kind.name) + " " + worst.name);
  if (wide && worst.value > 0) worst.value /= furthest(there, compared(kind, *wide, one, true)).value;
  if (!there.empty()) (figures.*kind.worst).take(finite(worst.value), worst.name);
}

// By tensor how far one rank is from itself in a wider precision; none less than half as far as they are on average,
// for a small tensor may be near by chance.
std::map<std::string, double> controls(const Tensors& theirs, const Tensors& wide, const Case& one) {
  std::map<std::string, double> list;
  double squares = 0;
  for (const auto& [name, tensor] : theirs) {
    list[name] = distance(without_key_bias(name, tensor, one), without_key_bias(name, wide.at(name), one));
    squares += list[name] * list[name];
  }
  for (auto& [name, control] : list)
    control = std::max(control, 0.5 * std::sqrt(squares / static_cast<double>(list.size())));
  return list;
}

void compare_tensors(const TensorsKind& kind, const Record& mine, const Record& theirs, const Record* wide,
                     const Case& one, Figures& figures) {
  const auto control =
      wide ? controls(theirs.*kind.tensors, wide->*kind.tensors, one) : std::map<std::string, double>();
  for (const auto& [name, tensor] : mine.*kind.tensors) {
    const auto other = (theirs.*kind.tensors).find(name);
    if (other == (theirs.*kind.tensors).end()) {
      (figures.*kind.worst).take(INFINITY, name + " (one rank has none)");
      continue;
    }
    if (!torch::equal(tensor, other->second)) note_difference(figures, std::string(kind.name) + " " + name);
    const auto a = without_key_bias(name, tensor, one), b = without_key_bias(name, other->second, one);
    const double value = wide ? finite(distance(a, b) / std::max(control.at(name), 1e-300)) : relative(a, b);
    (figures.*kind.worst).take(value, name);
  }
}

// Of a run that goes on from a checkpoint, one rank's first gradients are another step's.
bool is_compared(const TensorsKind& kind, const Case& one) {
  return one.resumed == 0 || kind.worst != &Figures::gradient;
}

// What ranks tell one another: "kind number name" a line.
std::string as_lines(const Figures& f, const Record& mine) {
  std::string text;
  const auto add = [&](const char* kind, const Worst& worst) {
    if (!worst.name.empty()) text += fmt::format("{} {:a} {}\n", kind, worst.value, worst.name);
  };
  for (const auto& kind : kNumbers) add(kind.name, f.*kind.worst);
  for (const auto& kind : kTensors) {
    add(kind.name, f.*kind.worst);
    for (const auto& [name, tensor] : mine.*kind.tensors) text += fmt::format("holds 0 {} {}\n", kind.name, name);
  }
  if (!f.same_bits) text += "bits 0 " + f.first_difference + "\n";
  return text;
}

}  // namespace

void Worst::take(double candidate, const std::string& candidate_name) {
  if (!(candidate > value) && !name.empty()) return;
  value = candidate;
  name = candidate_name;
}

Figures compare(const Record& mine, const Record& theirs, const Record* wide, const Case& one, const Mesh& mesh) {
  Figures here, all;
  std::map<std::string, Worst*> worsts;
  for (const auto& kind : kNumbers) {
    compare_numbers(kind, mine, theirs, wide, one, here);
    worsts[kind.name] = &(all.*kind.worst);
  }
  for (const auto& kind : kTensors) {
    if (is_compared(kind, one)) compare_tensors(kind, mine, theirs, wide, one, here);
    worsts[kind.name] = &(all.*kind.worst);
  }
  std::set<std::string> held;
  for (const auto& text : mesh.world().all_gather_text(as_lines(here, mine))) {
    std::istringstream lines(text);
    std::string kind, number, name;
    while (lines >> kind >> number && std::getline(lines >> std::ws, name)) {
      if (kind == "holds") {
        held.insert(name);
      } else if (kind == "bits") {
        note_difference(all, name);
      } else {
        worsts.at(kind)->take(std::strtod(number.c_str(), nullptr), name);
      }
    }
  }
  for (const auto& kind : kTensors)
    for (const auto& [name, tensor] : theirs.*kind.tensors)
      if (!held.count(std::string(kind.name) + " " + name)) all.missing = std::string(kind.name) + " " + name;
  return all;
}

std::string verdict(const Figures& f, const Case& one) {
  if (!f.missing.empty()) return "no rank holds " + f.missing;
  if (one.bits) return f.same_bits ? "" : "other bits: " + f.first_difference;
  const double bound = one.bound();
  std::string text;
  const auto check = [&](const char* what, const Worst& worst) {
    if (worst.value <= bound) return;
    text += fmt::format("{}{} differs by {:.1e} > {:.0e} in {}", text.empty() ? "" : "; ", what, worst.value, bound,
                        worst.name);
  };
  for (const auto& kind : kNumbers) check(kind.name, f.*kind.worst);
  for (const auto& kind : kTensors) check(kind.name, f.*kind.worst);
  return text;
}

std::string to_text(const Figures& f, const Case& one) {
  if (f.same_bits) return "same bits";
  std::string text;
  const auto show = [&](const char* what, const Worst& worst) {
    if (worst.name.empty()) return;
    text += (text.empty() ? "" : " ") + std::string(what) + " " +
            (one.precision == "fp64" ? fmt::format("{:.0e}", worst.value) : fmt::format("{:.2f}", worst.value));
  };
  for (const auto& kind : kNumbers) show(kind.name, f.*kind.worst);
  for (const auto& kind : kTensors) show(kind.name, f.*kind.worst);
  return text;
}

}  // namespace ditto::matrix
