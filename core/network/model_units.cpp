#include "core/network/model_units.h"

#include <utility>

#include "core/network/adapter.h"

namespace ditto {

ModelUnits::ModelUnits(Components& components, const Mesh& mesh, std::shared_ptr<const OpTable> table, Setting setting_)
    : RunningUnits(mesh, std::move(table), setting_),
      setting(std::move(setting_)),
      model(components.make<Model>(setting.section, setting.component, setting.needs)) {
  if (setting.adapter) adapter = adapt(*model, *setting.adapter);
  take(*model, setting.prefix, [this](const std::string& name) { return !adapter || is_of_adapter(name); });
}

std::optional<TokenRoute> ModelUnits::route() const {
  if (!setting.tread) return std::nullopt;
  const auto block = [&](int64_t at) { return at < 0 ? at + model->depth() : at; };
  return TokenRoute{block(setting.tread->start), block(setting.tread->end), setting.tread->ratio};
}

}  // namespace ditto
