#include "core/train/run_log.h"

#include <ditto/error.h>
#include <ditto/text.h>

#include "core/assembly/run_notes.h"
#include "core/console/streams.h"
#include "core/formats/text/toml.h"
#include "core/sample/grid.h"

namespace ditto {

void RunLog::open() {
  if (!writes()) return;
  folder_ = std::make_unique<report::RunFolder>(output_folder(recipe_));
  metrics_ = std::make_unique<report::MetricsLog>(folder_->path());
  if (recipe_.record.receipts) receipts_ = std::make_unique<ReceiptFile>(folder_->path());
}

void RunLog::say(const std::string& text) {
  if (!writes()) return;
  const auto line = shown(text, kSentenceShown);
  note(line);
  if (progress_) {
    progress_->message(line);
  } else {
    report::tell(line);
  }
}

void RunLog::note(const std::string& line) {
  if (folder_) folder_->log(line);
}

int RunLog::noting_error(const std::function<int()>& work) {
  try {
    return work();
  } catch (const Error& error) {
    note("error: " + shown(error.what(), kSentenceShown));
    throw;
  }
}

void RunLog::cut_back(int64_t step) {
  if (metrics_) metrics_->cut_back(step);
}

void RunLog::record_run(const Assembly& assembly, int64_t done) {
  if (!writes()) return;
  write_recipe(assembly);
  if (!recipe_.log.tensorboard) return;
  board_ = std::make_unique<report::TensorBoardLog>(folder_->path(), done + 1, recipe_.log.tensorboard_flush);
  board_->recipe(done, formats::render_toml(recipe_.resolved()));
  board_->options(done, recipe_.resolved());
}

void RunLog::write_recipe(const Assembly& assembly) {
  if (folder_) folder_->write_recipe(run_toml(assembly, assembly.components.registry));
}

void RunLog::begin_progress(int64_t done) {
  if (!writes()) return;
  report::ProgressOptions options;
  options.style = report::progress_style(recipe_.log.progress);
  options.every_s = recipe_.log.plain_every;
  options.record = [this](std::string_view line) { folder_->log(line); };
  report::ProgressState start;
  start.done = done;
  start.items = 0;
  progress_ = std::make_unique<report::Progress>(recipe_.run.steps, options, start);
}

void RunLog::show_progress(const report::ProgressState& state) {
  if (progress_) progress_->update(state);
}

void RunLog::end_progress() {
  if (progress_) progress_->finish();
}

void RunLog::add(const report::StepRecord& record) {
  if (metrics_) metrics_->append(record);
}

void RunLog::plot(const report::StepRecord& record) {
  const auto every = recipe_.log.tensorboard_every;
  if (board_ && every > 0 && record.step % every == 0) board_->add(record);
}

void RunLog::add(const report::ValidationRecord& record) {
  if (metrics_) metrics_->append(record);
  if (board_) board_->add(record);
}

void RunLog::add_samples(int64_t step, const std::vector<formats::Picture>& sheets, const std::string& request) {
  if (!writes()) return;
  if (sheets.size() == 1)
    formats::write_png(folder_->sample_file(step, ".png"), sheets.front(), report::settings_text(request));
  else
    formats::write_webp(folder_->sample_file(step, ".webp"), sheets);
  if (board_) board_->samples(step, sheets.front());
}

void RunLog::secure() {
  if (folder_) folder_->require_there();
  if (metrics_) metrics_->sync();
  if (receipts_) receipts_->sync();
}

void RunLog::flush() {
  if (board_) board_->flush();
  if (metrics_) metrics_->sync();
}

}  // namespace ditto
