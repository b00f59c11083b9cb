#include <ditto/nn/layer.h>

#include <utility>

namespace ditto {

Layer::Layer() = default;
Layer::~Layer() = default;

Linear Layer::linear(const std::string& name, int64_t in, int64_t out, Split split, Init weight,
                     std::optional<Init> bias) {
  return Linear(make<LinearModule>(name, LinearModule::Shape{in, out, weight, bias}, std::move(split)));
}

Linear Layer::linear(const std::string& name, int64_t in, int64_t out, Split split) {
  return linear(name, in, out, std::move(split), Init::xavier(in, out));
}

Linear Layer::zero_linear(const std::string& name, int64_t in, int64_t out, Split split) {
  return linear(name, in, out, std::move(split), Init::zeros());
}

}  // namespace ditto
