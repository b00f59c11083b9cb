// A run's TensorBoard events: scalars, sample sheets, the recipe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/formats/picture/picture.h"
#include "core/formats/tensorboard/events.h"
#include "core/formats/text/toml.h"
#include "core/run_folder/metrics.h"

namespace ditto::report {

// Writes a file of its own in the run's folder, which TensorBoard merges with those of earlier starts. Errors as
// formats::EventWriter. Tags: train/…, loss/NAME, validation/…, samples, recipe.
class TensorBoardLog {
 public:
  // `first_step`: the first step that will be written; more than 0 after a resume. What earlier files say of that step
  // and later ones is then forgotten by TensorBoard. `flush_s`: seconds between writes to the disk.
  explicit TensorBoardLog(const std::string& folder, int64_t first_step = 0, double flush_s = 5);

  void add(const StepRecord& record);
  void add(const ValidationRecord& record);
  void samples(int64_t step, const formats::Picture& sheet);
  void recipe(int64_t step, std::string_view toml);  // shown as it is written
  // Its options, "model.depth", for the tab HPARAMS, where runs of a folder are compared by them. What run.toml notes
  // beside them is left out.
  void options(int64_t step, const formats::Table& recipe);
  void flush() { writer_.flush(); }
  const std::string& path() const { return writer_.path(); }

 private:
  void flush_sometimes();
  formats::EventWriter writer_;
  double flush_s_;
  double flushed_at_;
};

}  // namespace ditto::report
