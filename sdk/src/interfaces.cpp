// Out-of-line destructors: one copy of each interface's type information, here, whatever plugins are loaded.
#include <ditto/cache.h>
#include <ditto/ditto.h>
#include <ditto/guidance.h>
#include <ditto/parallel/in_place_sum.h>
#include <ditto/parallel/transport.h>
#include <ditto/video_decoder.h>

namespace ditto {

WholeTensors::~WholeTensors() = default;
Optimizer::~Optimizer() = default;
Objective::Objective() = default;
Objective::~Objective() = default;
Network::~Network() = default;
Guidance::~Guidance() = default;
Cache::~Cache() = default;
KernelSet::~KernelSet() = default;
Transport::~Transport() = default;
InPlaceSum::~InPlaceSum() = default;
SumsInPlace::~SumsInPlace() = default;
Video::~Video() = default;
VideoDecoder::~VideoDecoder() = default;

}  // namespace ditto
