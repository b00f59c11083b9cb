#include <ditto/encoder.h>

namespace ditto {

Encoder::~Encoder() = default;

}  // namespace ditto
