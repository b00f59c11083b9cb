// The recipe's [log] section.
#pragma once

#include <cstdint>
#include <string>

#include <ditto/options.h>

namespace ditto::report {

struct LogOptions {
  std::string progress = "auto";
  double plain_every = 10;
  bool tensorboard = true;
  int64_t tensorboard_every = 1;
  double tensorboard_flush = 5;
  double peak_tflops = 0;
  bool roofline = false;
  int64_t grid_columns = 0;
  int64_t grid_cell = 64;

  void read(OptionReader& option) {
    option("progress", progress, "how progress is shown on standard error; auto: a bar on a terminal, else lines")
        .one_of({"auto", "bar", "plain", "none"});
    option("plain_every", plain_every, "seconds between plain lines of progress, which log.txt gets too").above(0);
    option("tensorboard", tensorboard, "write TensorBoard events into the run's folder");
    option("tensorboard_every", tensorboard_every,
           "steps between scalars in TensorBoard (metrics.jsonl has every step)")
        .at_least(1);
    option("tensorboard_flush", tensorboard_flush, "seconds between writes of events to the disk").at_least(0);
    option("peak_tflops", peak_tflops, "peak of one device, in 10^12 operations a second, for mfu; 0: not known")
        .at_least(0);
    option("roofline", roofline,
           "measure the peak for mfu by a matrix product, 0.2 s between steps 1 and 2, if peak_tflops is not given");
    option.only_if(tensorboard, {"tensorboard_every", "tensorboard_flush"}, "is of TensorBoard's events");
    option.only_if(peak_tflops == 0, {"roofline"}, "measures the peak, which peak_tflops says");
    option("grid_columns", grid_columns, "pictures in a row of a sample sheet; 0: a column a class, else nearly square")
        .between(0, 4096);
    option("grid_cell", grid_cell, "pixels: smaller samples are enlarged by a whole factor on sheets").between(1, 4096);
  }
};

}  // namespace ditto::report
