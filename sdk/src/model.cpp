#include <ditto/model.h>

#include <ditto/error.h>

namespace ditto {

namespace {

const TensorSpec& offered(const ModelNeeds& needs, const std::string& name) {
  if (const auto* spec = find(needs.inputs, name)) return *spec;
  std::string there;
  for (const auto& spec : needs.inputs) there += (there.empty() ? "" : ", ") + spec.name;
  throw Error(ErrorKind::config, "the model's input \"" + name + "\"", "is made by nobody",
              "there is only: " + (there.empty() ? "nothing" : there));
}

}  // namespace

const std::vector<int64_t>& ModelNeeds::shape(const std::string& name) const { return offered(*this, name).shape; }

int64_t ModelNeeds::values(const std::string& name) const {
  const auto* spec = find(inputs, name);
  return spec ? spec->values : 0;
}

int64_t ModelNeeds::width(const std::string& name) const {
  const auto* spec = find(inputs, name);
  return spec && !spec->shape.empty() ? spec->shape.back() : 0;
}

Model::Model() = default;
Model::~Model() = default;

Batch Model::without_condition(Batch batch, const torch::Tensor&) const { return batch; }

}  // namespace ditto
