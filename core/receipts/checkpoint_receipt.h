// What a receipt would say of a checkpoint's tensors.
#pragma once

#include <string>

#include "core/receipts/receipt.h"

namespace ditto {

// Its step, and the hashes of its weights and their average, read piece by piece as they were written. Throws
// Error(checkpoint) where it is damaged.
Receipt receipt_of_checkpoint(const std::string& path);

}  // namespace ditto
