#include <ditto/encoder.h>

#include <ditto/error.h>

namespace ditto {

Encoder::Encoder() = default;
Encoder::~Encoder() = default;

Batch Encoder::encode(Batch batch, Context&) const { return batch; }

torch::Tensor Encoder::decode(const torch::Tensor&, Context&) const {
  throw Error(ErrorKind::config, "encoder", "has no way back to pictures", "save the latents");
}

}  // namespace ditto
