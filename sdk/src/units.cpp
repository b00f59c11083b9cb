#include <ditto/units.h>

#include <ditto/error.h>

namespace ditto {

std::string to_text(const Unit& unit) {
  switch (unit.kind) {
    case Unit::condition: return "condition";
    case Unit::tokens: return "tokens";
    case Unit::head: return "head";
    case Unit::objective: return "objective";
    case Unit::Kind::block: break;
  }
  return "block " + std::to_string(unit.block);
}

Units::Units() = default;
Units::~Units() = default;

void Units::adopt(Unit::Kind unit, const std::string& name, std::shared_ptr<torch::nn::Module> module) {
  register_module(name, std::move(module));
  unit_of_child_[name] = Unit{unit, -1};
}

void Units::adopt_block(int64_t index, std::shared_ptr<torch::nn::Module> module) {
  if (!blocks_) blocks_ = register_module("blocks", std::make_shared<torch::nn::Module>("blocks"));
  blocks_->register_module(std::to_string(index), std::move(module));
}

ForeignFormat Units::foreign(const std::string& format) const {
  std::string known;
  for (const auto& name : foreign_formats()) known += (known.empty() ? "" : ", ") + name;
  throw Error(ErrorKind::config, "weights", "there is no format \"" + format + "\" of this plugin's",
              known.empty() ? "it has none" : "it has: " + known);
}

Linear Units::linear(Unit::Kind unit, const std::string& name, int64_t in, int64_t out, Split split) {
  unit_of_child_[name] = Unit{unit, -1};
  return Layer::linear(name, in, out, std::move(split));
}

Linear Units::zero_linear(Unit::Kind unit, const std::string& name, int64_t in, int64_t out, Split split) {
  unit_of_child_[name] = Unit{unit, -1};
  return Layer::zero_linear(name, in, out, std::move(split));
}

std::map<std::string, Unit> Units::units() const {
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
      throw Error(ErrorKind::plugin, "parameter \"" + name + "\"", "belongs to no unit",
                  "make it with add<T>(Unit::…, name, …) or add_block");
    }
  }
  return result;
}

}  // namespace ditto
