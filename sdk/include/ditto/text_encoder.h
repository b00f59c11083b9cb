// What encoders of texts have in common: which text they take, and the names and masks of what they make of it.
//
// Legend: B samples, S places of text (tokens), E their width, P width of the pooled text.
#pragma once

#include <string>
#include <vector>

#include <ditto/batch.h>
#include <ditto/options.h>

namespace ditto {

// Two options: several encoders may take one caption, and make tensors of different names of it.
struct DITTO_API TextNames {
  std::string takes = "caption", name = "text";

  void read(OptionReader& option);  // declares "takes" and "name"
  // Of the text that it takes. Throws Error(config) that lists what there is, where `inputs` have no such text.
  TensorSpec taken(const TensorSpecs& inputs) const;
  // NAME fp32 [S, E] and NAME_mask bool [S]; where pooled > 0, NAME_pooled fp32 [P]. `tokens`: S of every text; -1:
  // that of a batch's longest.
  TensorSpecs made(int64_t tokens, int64_t width, int64_t pooled = 0) const;
  // The texts themselves, from host memory, without the NULs behind them. Their bytes may be no UTF-8. Throws
  // Error(plugin) where the batch's lie on a device.
  std::vector<std::string> texts(const Batch& batch) const;
  // Puts text_BSE, the mask of `lengths` and the lengths themselves, and, where it is defined, pooled_BP into the
  // batch. `lengths`: of each sample how many places count, 1 to S.
  void put(Batch& batch, const torch::Tensor& text_BSE, std::vector<int64_t> lengths,
           const torch::Tensor& pooled_BP = {}) const;
};

// bool [B, S]: true at the first lengths[b] places. On the host the numbers are known: it is made there, and moved.
DITTO_API torch::Tensor mask_of(const std::vector<int64_t>& lengths, int64_t places, torch::Device device);

}  // namespace ditto
