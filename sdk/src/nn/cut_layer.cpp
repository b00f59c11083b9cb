// What layers declare about being cut among ranks.
#include <numeric>

#include <torch/types.h>

#include <ditto/error.h>
#include <ditto/nn/cut_layer.h>

namespace ditto {

namespace {

// "a", "b" and "c"
std::string list_of(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "\"" : i + 1 == names.size() ? " and \"" : ", \"") + names[i] + "\"";
  return text;
}

// Checks one parameter's cut against its shape, and fills in what it leaves out.
void complete(ParameterCut& cut, at::IntArrayRef shape, const std::string& layer) {
  const auto refuse = [&](const std::string& found, const std::string& remedy) {
    throw Error(ErrorKind::plugin, layer, "its \"" + cut.parameter + "\" " + c10::str(shape) + " is declared " + found,
                remedy);
  };
  const auto dims = static_cast<int64_t>(shape.size());
  if (cut.dim < 0 || cut.dim >= dims)
    refuse("to be cut along dim " + std::to_string(cut.dim), "expected a dim from 0 to " + std::to_string(dims - 1));
  const int64_t length = shape[static_cast<size_t>(cut.dim)];
  if (cut.parts.empty()) cut.parts = {length};
  const auto sum = std::accumulate(cut.parts.begin(), cut.parts.end(), int64_t{0});
  const auto along = " along dim " + std::to_string(cut.dim);
  if (sum != length)
    refuse("to have parts that add up to " + std::to_string(sum) + along,
           "expected parts that add up to " + std::to_string(length));
  if (cut.unit < 1) refuse("to have units of " + std::to_string(cut.unit) + along, "expected units of at least 1");
  for (const int64_t part : cut.parts)
    if (part < 0 || part % cut.unit != 0)
      refuse("to have a part of " + std::to_string(part) + along,
             "expected whole units of " + std::to_string(cut.unit));
}

// "outputs", or "runs of 8 outputs".
std::string units_of(int64_t unit, const std::string& numbers) {
  return unit == 1 ? numbers : "runs of " + std::to_string(unit) + " " + numbers;
}

}  // namespace

CutLayer::CutLayer() = default;
CutLayer::~CutLayer() = default;

const LayerCut* CutLayer::cut(Axis axis) const {
  const auto it = cuts_.find(axis);
  return it == cuts_.end() ? nullptr : &it->second;
}

void CutLayer::declare(Axis axis, LayerCut cut, const std::string& layer) {
  auto shapes = named_parameters(/*recurse=*/false);
  for (const auto& child : named_children())  // its low-rank term
    if (auto* module = dynamic_cast<Module*>(child.value().get()); module && module->cut_layer() == this)
      for (const auto& one : child.value()->named_parameters())
        shapes.insert(child.key() + "." + one.key(), one.value());
  for (auto& one : cut.parameters) {
    const auto* leaf = shapes.find(one.parameter);
    if (!leaf)
      throw Error(ErrorKind::plugin, layer, "declares how \"" + one.parameter + "\" may be cut, and has none",
                  "its own parameters are " + list_of(shapes.keys()));
    complete(one, leaf->sizes(), layer);
  }
  if (cut.parameters.empty())
    throw Error(ErrorKind::plugin, layer, std::string("declares a cut along ") + ditto::name(axis) + " of no parameter",
                "name those that are cut, or declare nothing");
  if (cut.gathered && cut.output != LayerCut::Values::cut)
    throw Error(ErrorKind::plugin, layer, "declares that its outputs are gathered, and not that they are cut",
                "set LayerCut::output to Values::cut, or gathered to false");
  cuts_[axis] = std::move(cut);
}

void CutLayer::declare(const Split& split, const Words& words) {
  using Kind = Split::Kind;
  using Values = LayerCut::Values;
  if (split.kind == Kind::none) return;
  if (split.kind == Kind::along)
    throw Error(ErrorKind::plugin, words.layer, "has Split::along", "it is cut by columns, by rows, or not at all");
  LayerCut cut;
  cut.channels = words.channels;
  cut.condition = split.condition;
  cut.sequence = split.sequence;
  if (split.kind == Kind::rows) {
    cut.parameters = {{"weight", words.dim_of_inputs, split.parts, split.unit}};
    cut.units = units_of(split.unit, words.inputs);
    cut.input = Values::cut, cut.output = Values::partial;
  } else {
    cut.parameters = {{"weight", 1 - words.dim_of_inputs, split.parts, split.unit}};
    if (named_parameters(/*recurse=*/false).contains("bias"))
      cut.parameters.push_back({"bias", 0, split.parts, split.unit});
    cut.units = split.are_heads ? "attention heads of width " + std::to_string(split.unit)
                                : units_of(split.unit, words.outputs);
    cut.output = Values::cut;
    cut.gathered = split.gather;
    cut.are_heads = split.are_heads;
  }
  declare(Axis::tensor, std::move(cut), words.layer);
}

}  // namespace ditto
