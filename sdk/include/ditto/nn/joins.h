// Pictures that a model sees beside the one it denoises: a smaller one for super-resolution (C. Saharia et al., "Image
// super-resolution via iterative refinement", 2021, arXiv:2104.07636), what is left of one and its mask for inpainting
// (C. Saharia et al., "Palette", 2021, arXiv:2111.05826). They are joined to x as further channels. ditto.h does not
// include it.
//
// Legend: B samples, C channels, H W sides.
#pragma once

#include <string>
#include <vector>

#include <ditto/model.h>
#include <ditto/options.h>

namespace ditto {

class DITTO_API Joins {
 public:
  // Declares "joins".
  static void read(OptionReader& option, std::vector<std::string>& names);

  // `names`: of tensors [C', h, w] that the data or an encoder offers, h and w at most x's. Throws Error(config) for
  // what is not offered or is none, a name that stands twice or is x's, videos, and pictures of several sizes.
  Joins(const std::string& model, const std::vector<std::string>& names, const ModelNeeds& needs);

  // What the model's first map is made for: x with the channels of all.
  const ModelNeeds& joined() const { return joined_; }
  // x [B, C, H, W] with them behind it, in the recipe's order; smaller ones are enlarged by bicubic (maps.h). Where
  // nothing is joined, x.
  torch::Tensor forward(const Batch& batch, Context& ctx) const;
  // Adds them to what the model takes, for takes().
  void add_to(TensorSpecs& takes) const;
  // Why no published model is this one; empty: one may be.
  std::string not_theirs() const;

 private:
  TensorSpecs specs_;
  ModelNeeds joined_;
};

}  // namespace ditto
