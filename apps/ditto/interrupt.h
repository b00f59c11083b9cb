// Ctrl-C in a command that cannot go on from where it was.
#pragma once

namespace ditto {

// From now on SIGINT ends the process as usual, after this line on standard error. Does nothing where the process was
// started to ignore it. `line` is a literal and ends with "\n".
void say_when_interrupted(const char* line);

}  // namespace ditto
