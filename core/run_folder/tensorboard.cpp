#include "core/run_folder/tensorboard.h"

#include <chrono>

namespace ditto::report {

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Four spaces make a block of code in Markdown, whatever the text holds.
std::string as_code(std::string_view text) {
  std::string out = "    ";
  for (const char letter : text) {
    out += letter;
    if (letter == '\n') out += "    ";
  }
  return out;
}

// Lists as they are written.
void add_options(const formats::Table& table, const std::string& prefix,
                 std::map<std::string, formats::HParam>& values) {
  for (const auto& entry : table.entries()) {
    const auto name = prefix + entry.key;
    if (name == "record") continue;
    const auto& value = entry.value;
    if (const auto* inner = value.as<formats::Table>()) {
      add_options(*inner, name + ".", values);
    } else if (const auto* truth = value.as<bool>()) {
      values[name] = *truth;
    } else if (const auto* whole = value.as<int64_t>()) {
      values[name] = static_cast<double>(*whole);
    } else if (const auto* number = value.as<double>()) {
      values[name] = *number;
    } else if (const auto* text = value.as<std::string>()) {
      values[name] = *text;
    } else {
      values[name] = formats::render_toml_value(value);
    }
  }
}

}  // namespace

TensorBoardLog::TensorBoardLog(const std::string& folder, int64_t first_step, double flush_s)
    : writer_(folder, first_step), flush_s_(flush_s), flushed_at_(now()) {}

void TensorBoardLog::add(const StepRecord& record) {
  const auto write = [&](const char* tag, double value) { writer_.scalar(tag, record.step, value); };
  write("train/loss", record.loss);
  write("train/grad_norm", record.grad_norm);
  write("train/lr", record.lr);
  write("train/samples_per_s", record.samples_per_s);
  write("train/step_s", record.step_s);
  write("train/data_wait", record.data_wait);
  write("train/mem_bytes", static_cast<double>(record.mem_bytes));
  if (record.tflops) write("train/tflops", *record.tflops);
  if (record.mfu) write("train/mfu", *record.mfu);
  if (record.ema_decay) write("train/ema_decay", *record.ema_decay);
  if (record.skipped) write("train/skipped", 1);
  for (const auto& [name, value] : record.losses) writer_.scalar("loss/" + name, record.step, value);
  flush_sometimes();
}

void TensorBoardLog::add(const ValidationRecord& record) {
  writer_.scalar("validation/loss", record.step, record.loss);
  for (size_t i = 0; i < record.strata.size(); ++i)
    if (record.strata[i]) writer_.scalar("validation/stratum_" + std::to_string(i), record.step, *record.strata[i]);
  for (const auto* numbers : {&record.losses, &record.measures})
    for (const auto& [name, value] : *numbers) writer_.scalar("validation/" + name, record.step, value);
  flush();
}

void TensorBoardLog::samples(int64_t step, const formats::Picture& sheet) {
  const auto png = formats::encode_png(sheet);
  writer_.image("samples", step, sheet.width, sheet.height, sheet.channels, png);
  flush();
}

void TensorBoardLog::recipe(int64_t step, std::string_view toml) {
  writer_.text("recipe", step, as_code(toml));
  flush();
}

void TensorBoardLog::options(int64_t step, const formats::Table& recipe) {
  std::map<std::string, formats::HParam> values;
  add_options(recipe, "", values);
  writer_.hparams(step, values);
  flush();
}

void TensorBoardLog::flush_sometimes() {
  const double time = now();
  if (time - flushed_at_ < flush_s_) return;
  flushed_at_ = time;
  flush();
}

}  // namespace ditto::report
