#include <fmt/format.h>

#include "core/exchange/foreign.h"
#include "core/exchange/foreign_folder.h"
#include "core/exchange/foreign_map.h"

namespace ditto::checkpoint {

std::string export_weights(Model& model, const std::string& format_name, const std::string& out,
                           const std::map<std::string, std::string>& notes, const ForeignConfig& scheduler,
                           const ExportForm& form) {
  torch::NoGradGuard no_grad;
  const ForeignFormat format = model.foreign(format_name);
  const auto layout = Layout::of(model);
  require_map(format, entries_of(layout), "format " + format_name);
  NamedTensors ours;
  for (const auto& entry : layout.entries) ours[entry.name] = entry.tensor.detach();
  NamedTensors theirs;
  for (auto& [name, tensor] : to_theirs(format, ours)) theirs[format.prefix + name] = std::move(tensor);
  if (form.dtype)
    for (auto& [name, tensor] : theirs)
      if (tensor.is_floating_point()) {
        const bool was_finite = tensor.isfinite().all().item<bool>();
        tensor = tensor.to(*form.dtype);
        if (was_finite && !tensor.isfinite().all().item<bool>())
          throw Error(ErrorKind::checkpoint, name,
                      fmt::format("has numbers too large for {}", c10::toString(*form.dtype)),
                      "export it as bf16, or as it is");
      }
  formats::Metadata metadata(notes.begin(), notes.end());
  metadata["format"] = "pt";  // Python readers of weights ask for it
  const ExportPlace place(out, {format.config, scheduler, form.kept_config});
  place.write_weights(theirs, metadata, form.most_bytes);
  place.write_configs();
  return place.card();
}

}  // namespace ditto::checkpoint
