// What torchrun shows of a rank that failed.
#pragma once

#include <string>

namespace ditto {

// Writes `message` to the file that TORCHELASTIC_ERROR_FILE names, where that is set, as torch.distributed.elastic
// reads it: {"message": {"message": …, "extraInfo": {"timestamp": SECONDS}}}. What cannot be written is left out.
void write_error_file(const std::string& message);

}  // namespace ditto
