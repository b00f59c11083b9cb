#include <ditto/data.h>

namespace ditto {

Source::~Source() = default;

}  // namespace ditto
