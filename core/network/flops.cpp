#include "core/network/flops.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

#include <torch/types.h>

#include <ditto/error.h>

#include "core/data/names.h"
#include "core/network/adapter.h"
#include "core/plugin/guard.h"

namespace ditto {

namespace {

const char* part_of_model(const Unit& unit) {
  switch (unit.kind) {
    case Unit::condition: return "condition";
    case Unit::tokens: return "tokens";
    case Unit::Kind::block: return "blocks";
    case Unit::head: return "head";
    case Unit::objective: return "objective";
  }
  return "?";
}

torch::Tensor shape_alone(const std::vector<int64_t>& sizes, at::ScalarType dtype) {
  return torch::empty(sizes, torch::TensorOptions(dtype).device(torch::kMeta));
}

// What the library says of an operation that has no meta kernel, as one sentence.
std::string without_meta(const std::string& said) {
  const auto begin = said.find("aten::");
  if (begin == std::string::npos) return said.substr(0, said.find('\n'));
  const auto end = said.find_first_of("' \n:", begin + std::string("aten::").size());
  return "\"" + said.substr(begin, end - begin) + "\" cannot be computed on shapes alone";
}

// The smallest and the largest, and those with the longest sides; of a few all.
std::set<std::vector<int64_t>> outermost(const std::vector<std::vector<int64_t>>& sizes) {
  constexpr size_t kFew = 8;
  if (sizes.size() <= kFew) return {sizes.begin(), sizes.end()};
  const auto numbers = [](const std::vector<int64_t>& sides) {
    return std::accumulate(sides.begin(), sides.end(), int64_t{1}, std::multiplies<>());
  };
  const auto [least, most] = std::minmax_element(sizes.begin(), sizes.end(),
                                                 [&](const auto& a, const auto& b) { return numbers(a) < numbers(b); });
  std::set<std::vector<int64_t>> outer{*least, *most};
  for (size_t d = 0; d < sizes.front().size(); ++d)
    outer.insert(*std::max_element(sizes.begin(), sizes.end(), [&](const auto& a, const auto& b) {
      return a.size() > d && b.size() > d ? a[d] < b[d] : a.size() < b.size();
    }));
  return outer;
}

}  // namespace

double total(const Flops& flops) {
  double sum = 0;
  for (const auto& [unit, parts] : flops)
    for (const auto& [part, operations] : parts) sum += operations;
  return sum;
}

Batch shapes_of_batch(const Model& model, const ModelNeeds& needs, int64_t samples, int64_t any_length,
                      const std::vector<int64_t>& sides) {
  Batch batch;
  for (const auto& input : model.takes()) {
    const auto* offered = find(needs.inputs, input.name);
    auto sizes = offered ? offered->shape : input.shape;
    auto side = sides.begin();
    for (int64_t& size : sizes) {
      if (size == kOwnSide && side != sides.end()) size = *side++;
      if (size < 0) size = any_length;
    }
    sizes.insert(sizes.begin(), samples);
    batch[input.name] = shape_alone(sizes, input.dtype);
  }
  for (int64_t i = 0; i < samples; ++i) batch.ids.push_back(i);
  batch.weights.assign(static_cast<size_t>(samples), 1.0);
  return batch;
}

FlopCounter::FlopCounter(Components& components, const ModelUnits& of)
    : of_(of),
      table_(std::make_shared<OpTable>(std::vector<KernelRow>{}, std::map<std::string, GivenOption>{}, Log(),
                                       components.added_ops())) {
  const ShapesAlone no_numbers;
  model_ = components.make<Model>(of.setting.section, of.setting.component, of.setting.needs);
  if (of.adapter) adapt(*model_, *of.adapter);
}

// Of samples of several sizes each by itself, its texts in their own lengths.
double FlopCounter::forward(const Batch& batch) {
  if (batch.parts.empty()) return of_shapes(shapes_of(batch));
  double sum = 0;
  for (const auto& part : batch) {
    const auto shapes = shapes_of(part);
    for (size_t i = 0; i < part.ids.size(); ++i) sum += of_shapes(of_sample(part, shapes, i));
  }
  return sum;
}

FlopCounter::Shapes FlopCounter::shapes_of(const Batch& batch) const {
  Shapes shapes;
  for (const auto& input : model_->takes()) {
    const auto& from = input.name == names::kInput ? names::kClean : input.name;
    if (batch.has(from)) {
      shapes.push_back(batch.at(from).sizes().vec());
      continue;
    }
    shapes.push_back({batch.size()});
    shapes.back().insert(shapes.back().end(), input.shape.begin(), input.shape.end());
  }
  return shapes;
}

FlopCounter::Shapes FlopCounter::of_sample(const Batch& part, Shapes shapes, size_t i) const {
  auto shape = shapes.begin();
  for (const auto& input : model_->takes()) {
    auto name = input.name;
    if (name.ends_with(names::kMask)) name.resize(name.size() - std::string(names::kMask).size());
    const auto known = part.lengths.find(name);
    shape->at(0) = 1;
    if (known != part.lengths.end()) shape->at(1) = std::max<int64_t>(known->second.at(i), 1);
    ++shape;
  }
  return shapes;
}

double FlopCounter::of_shapes(const Shapes& shapes) {
  if (const auto known = counted_.find(shapes); known != counted_.end()) return known->second;
  Batch inputs;
  auto shape = shapes.begin();
  for (const auto& input : model_->takes()) inputs[input.name] = shape_alone(*shape++, input.dtype);
  inputs.ids.resize(static_cast<size_t>(shapes.front().at(0)));
  std::iota(inputs.ids.begin(), inputs.ids.end(), 0);
  inputs.weights.assign(inputs.ids.size(), 1.0);
  return counted_[shapes] = total(count(inputs));
}

Flops FlopCounter::forward(int64_t samples, int64_t any_length, const std::vector<int64_t>& sides) {
  return count(shapes_of_batch(*model_, of_.setting.needs, samples, any_length, sides));
}

int64_t FlopCounter::tokens(const std::vector<int64_t>& sides) {
  if (const auto known = tokens_.find(sides); known != tokens_.end()) return known->second;
  int64_t tokens = 0;
  Parts none;
  run(
      shapes_of_batch(*model_, of_.setting.needs, 1, 1, sides), [&](const Unit&) -> Parts& { return none; }, &tokens);
  return tokens_[sides] = tokens;
}

void FlopCounter::check(const std::vector<std::vector<int64_t>>& sizes) {
  constexpr int64_t kAnyLength = 1;  // of a text: no model has too few places for it
  const auto whole = outermost(sizes);
  const auto place = "model '" + of_.setting.component.plugin + "'";
  const auto forward = [&](const std::vector<int64_t>& sides) {
    tokens(sides);
    Parts none;
    const auto to_none = [&](const Unit&) -> Parts& { return none; };
    if (whole.count(sides))
      run(shapes_of_batch(*model_, of_.setting.needs, 1, kAnyLength, sides), to_none, nullptr, of_.ctx->token_leaf);
  };
  for (const auto& sides : sizes) {
    try {
      guarded(place, [&] { forward(sides); });
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::config || error.kind() == ErrorKind::shape) throw;
    }
  }
}

std::vector<double> FlopCounter::of_blocks() {
  constexpr int64_t kTextLength = 128;
  for (int64_t length = kTextLength;; length /= 2) {
    try {
      return of_blocks(length);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::shape || length == 1) throw;
    }
  }
}

std::vector<double> FlopCounter::of_blocks(int64_t text_length) const {
  std::vector<Parts> blocks(static_cast<size_t>(model_->depth()));
  Parts others;
  run(shapes_of_batch(*model_, of_.setting.needs, 1, text_length), [&](const Unit& unit) -> Parts& {
    return unit.kind == Unit::Kind::block ? blocks.at(static_cast<size_t>(unit.block)) : others;
  });
  std::vector<double> sums;
  for (const auto& parts : blocks) sums.push_back(total({{"", parts}}));
  return sums;
}

Flops FlopCounter::count(const Batch& batch) const {
  Flops flops;
  run(batch, [&](const Unit& unit) -> Parts& { return flops[part_of_model(unit)]; });
  return flops;
}

void FlopCounter::run(const Batch& batch, const std::function<Parts&(const Unit&)>& parts_of, int64_t* tokens,
                      int64_t token_leaf) const {
  torch::NoGradGuard no_grad;
  Context ctx(table_, Random(0));
  ctx.device = torch::kMeta;
  ctx.token_leaf = token_leaf;
  ctx.phase = of_.route() ? Phase::train : Phase::evaluate;
  ModelProgram program(*model_, ctx, [&](const Unit& unit, UnitCall& call) {
    ctx.flops = &parts_of(unit);
    run_model_unit(*model_, unit, call);
  });
  try {
    if (const auto around = of_.route()) program.route(*around);
    auto stream = program.begin(batch);
    if (tokens) {
      *tokens = stream.grid.tokens();
      return;
    }
    program.blocks(0, model_->depth(), stream);
    program.head(stream, batch);
  } catch (const c10::Error& error) {
    throw Error(ErrorKind::plugin, "model '" + of_.setting.component.plugin + "'",
                "its operations are not counted: " + without_meta(error.what_without_backtrace()));
  }
}

}  // namespace ditto
