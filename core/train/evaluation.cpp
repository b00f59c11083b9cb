#include "core/train/evaluation.h"

#include <optional>
#include <vector>

#include <fmt/format.h>

#include "core/train/sheets.h"
#include "core/train/validation.h"

namespace ditto {

void log_validation(Training& training, RunLog& log) {
  auto record = validate(*training.assembly, *training.ema, *training.validation_loader);
  record.step = training.done;
  log.add(record);
  if (record.samples == 0)
    return log.say(
        fmt::format("step {}: no validation loss, as none of the held-out samples can be decoded", record.step));
  auto line = fmt::format("step {}: validation loss {:.6f}", record.step, record.loss);
  for (const auto& [name, value] : record.measures) line += fmt::format(", {} {:.4f}", name, value);
  log.say(line);
}

void log_samples(Training& training, RunLog& log) {
  // No training ends for a picture. What the samples' own numbers lead to (a solver that needs more steps) all ranks
  // hear of alike; another failure may be of one rank alone, and ends the run where there are others.
  const auto warn = [&](const Error& error) {
    log.say(fmt::format("warning: no grid of step {}: {}", training.done, error.what()));
  };
  auto& assembly = *training.assembly;
  Sheet sheet;
  std::optional<Error> failure;
  {
    const Ema::Scope averaged(*training.ema, [&] { assembly.networks->parameters_changed(); });
    try {  // inside of the scope, which brings the weights back only where nothing is thrown through it
      sheet = draw_sheet(assembly, [&](const std::string& line) { log.say(line); });
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::config && error.kind() != ErrorKind::numeric && training.mesh.world_size() > 1)
        throw;
      failure = error;
    }
  }
  if (failure) return warn(*failure);
  try {
    log.add_samples(training.done, sheet.frames, sheet.request);
  } catch (const Error& error) {
    warn(error);
  }
}

}  // namespace ditto
