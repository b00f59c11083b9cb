// Standard input, output and error, which may be closed, full, or read by nobody any more.
#pragma once

#include <string_view>

namespace ditto::report {

// Called first in main. What cannot be written is an error of the call that writes from then on, never a signal
// (SIGPIPE, SIGXFSZ). Closed streams are opened, so that no file of a run gets their numbers. What is written to
// std::cout is remembered as lost where it could not be written.
void prepare_streams();

// Called in main before anything else asks to be called at the end. The process ends, when main returns or exit() is
// called, once its streams are flushed and what was made since then is gone: what was there before, LibTorch's
// registries of operators above all, is left to the kernel, as taking it apart is a fifth of a short command's time.
// Not under a sanitizer, nor where somebody has put a library into the process (profilers: LD_PRELOAD, LD_AUDIT,
// CUDA_INJECTION64_PATH), which have their last words then.
void end_without_libraries();

// Throws Error(data) where something that was printed on standard output could not be written. Called last in main.
void require_printed();

// Letters in a line of the terminal that a descriptor is; of anything else 80.
int terminal_width(int descriptor);

// A line on standard error, as shown() has it; nothing happens where nobody can read it.
void tell(std::string_view line);

// False: `descriptor` takes nothing any more. A terminal that is busy loses the text, no more.
bool write_text(int descriptor, std::string_view text);

}  // namespace ditto::report
