// The base of blocks and other parts of a model.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <ditto/error.h>
#include <ditto/nn/linear.h>

namespace ditto {

// Base for blocks and other parts of a model: makes named layers.
class DITTO_API Layer : public Module {
 public:
  Layer();
  ~Layer() override;

 protected:
  // Any layer; its parameters are NAME.….
  template <class T, class... Args>
  std::shared_ptr<T> make(const std::string& name, Args&&... args) {
    return register_module(
        name, named("layer \"" + name + "\"", [&] { return std::make_shared<T>(std::forward<Args>(args)...); }));
  }
  // An error of what `make` makes says its name.
  template <class Make>
  static auto named(const std::string& name, const Make& make) {
    try {
      return make();
    } catch (const Error& error) {
      throw error.within(name);
    }
  }
  Linear linear(const std::string& name, int64_t in, int64_t out, Split split = {});       // xavier, bias zero
  Linear zero_linear(const std::string& name, int64_t in, int64_t out, Split split = {});  // weight and bias zero
  Linear linear(const std::string& name, int64_t in, int64_t out, Split split, Init weight,
                std::optional<Init> bias = Init::zeros());
};

}  // namespace ditto
