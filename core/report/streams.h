// Standard input, output and error, which may be closed, full, or read by nobody any more.
#pragma once

#include <string_view>

namespace ditto::report {

// Called first in main. What cannot be written is an error of the call that writes from then on, never a signal
// (SIGPIPE, SIGXFSZ). Closed streams are opened, so that no file of a run gets their numbers. What is written to
// std::cout is remembered as lost where it could not be written.
void prepare_streams();

// Throws Error(data) where something that was printed on standard output could not be written. Called last in main.
void require_printed();

// A line on standard error, as shown() has it; nothing happens where nobody can read it.
void tell(std::string_view line);

// False: `descriptor` takes nothing any more. A terminal that is busy loses the text, no more.
bool write_text(int descriptor, std::string_view text);

}  // namespace ditto::report
