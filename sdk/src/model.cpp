#include <ditto/model.h>

#include <torch/torch.h>

#include <ditto/error.h>

namespace ditto {

std::string to_text(const Unit& unit) {
  switch (unit.kind) {
    case Unit::condition: return "condition";
    case Unit::tokens: return "tokens";
    case Unit::head: return "head";
    case Unit::Kind::block: break;
  }
  return "block " + std::to_string(unit.block);
}

Model::Model() = default;
Model::~Model() = default;

Batch Model::without_condition(Batch batch, const torch::Tensor&) const { return batch; }

ForeignFormat Model::foreign(const std::string& format) const {
  std::string known;
  for (const auto& name : foreign_formats()) known += (known.empty() ? "" : ", ") + name;
  throw Error(ErrorKind::config, "checkpoint format", "this model has no format \"" + format + "\"",
              known.empty() ? "it has none" : "it has: " + known);
}

void Model::adopt(Unit::Kind unit, const std::string& name, std::shared_ptr<torch::nn::Module> module) {
  register_module(name, std::move(module));
  unit_of_child_[name] = Unit{unit, -1};
}

void Model::adopt_block(int64_t index, std::shared_ptr<torch::nn::Module> module) {
  if (!blocks_) blocks_ = register_module("blocks", std::make_shared<torch::nn::Module>("blocks"));
  blocks_->register_module(std::to_string(index), std::move(module));
}

Linear Model::linear(Unit::Kind unit, const std::string& name, int64_t in, int64_t out, Split split) {
  unit_of_child_[name] = Unit{unit, -1};
  return Layer::linear(name, in, out, std::move(split));
}

Linear Model::zero_linear(Unit::Kind unit, const std::string& name, int64_t in, int64_t out, Split split) {
  unit_of_child_[name] = Unit{unit, -1};
  return Layer::zero_linear(name, in, out, std::move(split));
}

std::map<std::string, Unit> Model::units() const {
  std::map<std::string, Unit> result;
  for (const auto& item : named_parameters()) {
    const std::string& name = item.key();
    const auto dot = name.find('.');
    const std::string child = name.substr(0, dot);
    if (child == "blocks" && blocks_) {
      result[name] = Unit{Unit::Kind::block, std::stoll(name.substr(dot + 1))};
    } else if (const auto it = unit_of_child_.find(child); it != unit_of_child_.end()) {
      result[name] = it->second;
    } else {
      throw Error(ErrorKind::plugin, "parameter \"" + name + "\"", "belongs to no unit of the model",
                  "make it with add<T>(Unit::…, name, …) or add_block");
    }
  }
  return result;
}

namespace {

// FNV-1a, 64 bits: a parameter's name as the id of its draws.
int64_t id_of(const std::string& name) {
  std::uint64_t hash = 0xCBF29CE484222325ull;
  for (const unsigned char c : name) hash = (hash ^ c) * 0x100000001B3ull;
  return static_cast<int64_t>(hash);
}

void fill(torch::Tensor& tensor, const std::string& name, const Init& init, const Random& random) {
  const int64_t id[] = {id_of(name)};
  switch (init.kind) {
    case Init::Kind::zeros: tensor.zero_(); return;
    case Init::Kind::ones: tensor.fill_(1); return;
    case Init::Kind::normal:
      tensor.copy_(
          random.normal(Purpose::initial_weights, id, tensor.sizes(), torch::kDouble).squeeze(0).mul_(init.scale));
      return;
    case Init::Kind::uniform:
      tensor.copy_(
          random.uniform(Purpose::initial_weights, id, tensor.sizes()).squeeze(0).mul_(2).sub_(1).mul_(init.scale));
      return;
  }
}

}  // namespace

void initialise(Model& model, const Random& random) {
  torch::NoGradGuard no_grad;
  std::map<const at::TensorImpl*, Init> recipes;
  const auto collect = [&](const torch::nn::Module& module) {
    if (const auto* own = dynamic_cast<const Module*>(&module))
      for (const auto& made : own->own_parameters()) recipes[made.leaf().unsafeGetTensorImpl()] = made.init();
  };
  for (const auto& module : model.modules()) collect(*module);
  for (auto& item : model.named_parameters()) {
    const auto it = recipes.find(item.value().unsafeGetTensorImpl());
    if (it == recipes.end())
      throw Error(ErrorKind::plugin, "parameter \"" + item.key() + "\"", "has no initial values",
                  "make it with Module::parameter");
    fill(item.value(), item.key(), it->second, random);
  }
}

}  // namespace ditto
