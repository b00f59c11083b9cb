// Units: the parts of a network that are run one after another, and that a parameter belongs to.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ditto/exchange/foreign.h>
#include <ditto/nn/layer.h>

namespace ditto {

// In the order in which they run. Every parameter belongs to exactly one.
struct Unit {
  enum class Kind { condition, tokens, block, head, objective } kind;
  int64_t block = -1;  // its index, for kind block
  friend auto operator<=>(const Unit&, const Unit&) = default;
  static constexpr Kind condition = Kind::condition, tokens = Kind::tokens, head = Kind::head,
                        objective = Kind::objective;
};
DITTO_API std::string to_text(const Unit& unit);

// Base of what has parameters in units: a model, an encoder, an objective.
class DITTO_API Units : public Layer {
 public:
  Units();
  ~Units() override;
  // The unit of every parameter, by its full name. Throws Error(plugin) for one that belongs to none.
  std::map<std::string, Unit> units() const;

  // "facebook-dit", "diffusers": how another project's file of weights names the parameters. Throws Error(config) if
  // unknown.
  virtual ForeignFormat foreign(const std::string& format) const;
  virtual std::vector<std::string> foreign_formats() const { return {}; }

 protected:
  // Makes a module of this unit; its parameters are NAME.….
  template <class T, class... Args>
  std::shared_ptr<T> add(Unit::Kind unit, const std::string& name, Args&&... args) {
    auto module = named("\"" + name + "\"", [&] { return std::make_shared<T>(std::forward<Args>(args)...); });
    adopt(unit, name, module);
    return module;
  }
  // Makes block `index`; its parameters are blocks.INDEX.…. Blocks are added in order.
  template <class T, class... Args>
  std::shared_ptr<T> add_block(int64_t index, Args&&... args) {
    auto module =
        named(to_text({Unit::Kind::block, index}), [&] { return std::make_shared<T>(std::forward<Args>(args)...); });
    adopt_block(index, module);
    return module;
  }
  Linear linear(Unit::Kind unit, const std::string& name, int64_t in, int64_t out, Split split = {});
  Linear zero_linear(Unit::Kind unit, const std::string& name, int64_t in, int64_t out, Split split = {});

 private:
  void adopt(Unit::Kind unit, const std::string& name, std::shared_ptr<torch::nn::Module> module);
  void adopt_block(int64_t index, std::shared_ptr<torch::nn::Module> module);
  std::map<std::string, Unit> unit_of_child_;
  std::shared_ptr<torch::nn::Module> blocks_;
};

}  // namespace ditto
