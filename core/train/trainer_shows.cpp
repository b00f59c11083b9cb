// What a trainer shows of its run between steps and at its end: validation, sheets of samples, what was traced.
#include <sstream>

#include <fmt/format.h>

#include <ditto/text.h>

#include "core/train/sheets.h"
#include "core/train/trainer.h"
#include "core/train/validation.h"

namespace ditto {

std::map<std::string, int64_t> Trainer::memory_shares() {
  auto shares = held_bytes(*assembly_->networks, *optimizer_, *ema_);
  shares["activations"] = training_->activations.value_or(0);
  return shares;
}

void Trainer::show_trace() {
  const auto& asked = options_.trace;
  if (!asked.comm && !asked.kernels && !chrome_trace_) return;
  begin("telling what was traced");
  if (chrome_trace_) chrome_trace_->write(asked.file, mesh_);
  chrome_trace_.reset();
  std::string tables;
  if (asked.comm) tables += comm_table(mesh_, memory_shares()) + "\n";
  if (asked.kernels) tables += kernel_table(mesh_, kernels_) + "\n";
  std::istringstream table(tables);
  for (std::string line; std::getline(table, line);) say(line);
}

void Trainer::show_validation() {
  begin("validation");
  auto record = validate(*assembly_, *ema_, *validation_loader_);
  record.step = step_;
  if (!writes()) return;
  metrics_->append(record);
  if (board_) board_->add(record);
  say(record.samples > 0
          ? fmt::format("step {}: validation loss {:.6f}", step_, record.loss)
          : fmt::format("step {}: no validation loss, as none of the held-out samples can be decoded", step_));
}

void Trainer::show_grid() {
  if (recipe_.validate.grid_every == 0) return;
  begin("a grid of samples");
  // No training ends for a picture. What the samples' own numbers lead to (a solver that needs more steps) all ranks
  // hear of alike; another failure may be of one rank alone, and ends the run where there are others.
  const auto warn = [this](const Error& error) {
    say(fmt::format("warning: no grid of step {}: {}", step_, error.what()));
  };
  std::vector<formats::Picture> sheets;
  std::optional<Error> failure;
  {
    const Ema::Scope averaged(*ema_, [this] { assembly_->networks->parameters_changed(); });
    try {  // inside of the scope, which brings the weights back only where nothing is thrown through it
      sheets = draw_sheets(*assembly_, [this](const std::string& line) { say(line); });
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::config && error.kind() != ErrorKind::numeric && mesh_.world_size() > 1) throw;
      failure = error;
    }
  }
  if (failure) return warn(*failure);
  if (!writes()) return;
  try {
    write_grid(sheets);
  } catch (const Error& error) {
    warn(error);
  }
}

void Trainer::write_grid(const std::vector<formats::Picture>& sheets) {
  if (sheets.size() == 1)
    formats::write_png(folder_->sample_file(step_, ".png"), sheets.front());
  else
    formats::write_webp(folder_->sample_file(step_, ".webp"), sheets);
  if (board_) board_->samples(step_, sheets.front());
}

void Trainer::say_end(bool finished_before) {
  const auto folder = shown(output_folder(recipe_));
  if (const auto* audit = training_->audit())
    say(fmt::format("audit: {} micro-batches computed again, {} with other numbers", audit->repeated(),
                    audit->differed()));
  if (stopped_)
    say(fmt::format("stopped after step {} by a signal; the same command goes on from there, in {}", step_, folder));
  else if (finished_before)
    say(fmt::format("{} has made all of its {} steps before; raise run.steps to go on, or choose another run.name",
                    folder, step_));
  else
    say(fmt::format("{} steps made; the run is in {}", step_, folder));
}

}  // namespace ditto
