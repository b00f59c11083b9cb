#include "core/plan/forward_peak.h"

#include <algorithm>

#include <fmt/format.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include "core/assembly/first_weights.h"
#include "core/measure/memory.h"
#include "core/mesh/paper_mesh.h"
#include "core/network/flops.h"
#include "core/plan/paper.h"

namespace ditto {

namespace {

bool has_any_length(const RunningModel& model) {
  const auto takes = model.model->takes();
  return std::any_of(takes.begin(), takes.end(), [&](const TensorSpec& input) {
    const auto* offered = find(model.setting.needs.inputs, input.name);
    const auto& shape = offered ? offered->shape : input.shape;
    return std::any_of(shape.begin(), shape.end(), [](int64_t size) { return size < 0 && size != kOwnSide; });
  });
}

}  // namespace

ForwardPeak forward_peak(const Recipe& recipe, Registry& registry, int64_t samples, int64_t text_length) {
  report::MemoryMeter meter{torch::Device(torch::kMeta)};
  const report::MemoryMeter::Watch watch(meter);
  const torch::NoGradGuard no_grad;
  const ShapesAlone no_numbers;
  const PaperMesh mesh(complete_degrees({}, 1), {}, PaperMesh::Peers::alike);
  auto paper = on_paper(recipe);
  AssemblyParts parts;
  parts.data = parts.shapes_only = true;
  parts.weights = RunningModel::Weights::room;
  parts.frozen = FrozenWeights::none;
  Assembly assembly(paper, registry, mesh, parts, Log());
  check_first_weights(assembly);
  auto& networks = *assembly.networks;
  auto& model = *assembly.main;
  networks.table->meta_stands_for = torch::Device(recipe.run.device).type();
  networks.parameters_changed();
  networks.set_phase(Phase::evaluate);

  ForwardPeak found;
  found.model = recipe.model.plugin;
  found.precision = recipe.run.precision;
  found.parameters = model.learned() + model.frozen();
  found.samples = samples;
  const auto sides = largest_size(assembly).sides;
  if (!sides.empty()) found.size = to_text(sides);
  const int64_t before = meter.current();
  const auto run = [&](int64_t length) {
    const auto batch = shapes_of_batch(*model.model, model.setting.needs, samples, length, sides);
    meter.reset_peak();
    model.predict(batch);
    found.peak = meter.peak();
    found.text_length = has_any_length(model) ? length : 0;
  };
  const auto fits = [&](int64_t length) {
    try {
      run(length);
      return true;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::shape || length == 1) throw;
      return false;
    }
  };
  if (!fits(text_length)) {
    int64_t most = 0, least = text_length;  // that fits, and that does not
    while (least - most > 1) (fits((most + least) / 2) ? most : least) = (most + least) / 2;
    run(most);
  }
  found.weights = meter.current() - before;  // the copies, which stay
  for (const auto& entry : model.layout.entries) found.weights += static_cast<int64_t>(entry.tensor.nbytes());
  return found;
}

std::string to_text(const ForwardPeak& forward) {
  const auto line = [](const char* what, int64_t bytes) {
    return fmt::format("  {:12} {:>16} bytes, {:.2f} GB\n", what, bytes, static_cast<double>(bytes) / 1e9);
  };
  auto text = fmt::format("{} with {} numbers, {}, one forward of {} sample{} on one rank", forward.model,
                          forward.parameters, forward.precision, forward.samples, forward.samples == 1 ? "" : "s");
  if (!forward.size.empty()) text += fmt::format(" of {}, the largest size", forward.size);
  if (forward.text_length > 0) text += fmt::format(", texts of {}", forward.text_length);
  return text + "\n" + line("weights", forward.weights) + line("at most", forward.peak);
}

nlohmann::ordered_json to_json(const ForwardPeak& forward) {
  return {{"model", forward.model},
          {"precision", forward.precision},
          {"parameters", forward.parameters},
          {"samples", forward.samples},
          {"size", forward.size},
          {"text_length", forward.text_length},
          {"weights", forward.weights},
          {"peak", forward.peak}};
}

}  // namespace ditto
