// What the tiny UNets of case.cpp are made of, as far as ranks exchange anything for it: for closed forms
// (docs/layout_derivations.md). All in numbers of a sample.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ditto::matrix {

struct UnetBlock {
  std::vector<int64_t> sums;    // outputs of which tensor ranks have terms
  std::vector<int64_t> border;  // what a next stage of a pipeline goes on with behind it: live skips, and the map
};

struct Unet {
  std::vector<UnetBlock> blocks;
  int64_t condition = 0;  // carried, as the text is
  int64_t text = 0;
  bool text_learns = false;  // a layer has made it
  int64_t mask = 0;          // of the text, a byte each
};

// Null for a model that is no UNet.
const Unet* unet_of(const std::string& model);

}  // namespace ditto::matrix
