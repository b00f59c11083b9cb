// What encoders made of the texts of a request, on disk: models that sample in turn by the same texts encode them once.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "core/checkpoint/tensor_file.h"

namespace ditto {

class KeptTexts {
 public:
  // Texts are encoded so many at a time, and a file for each such part lies in `folder`.
  KeptTexts(std::string folder, int64_t at_once) : folder_(std::move(folder)), at_once_(at_once) {}
  // Makes of texts [begin, begin + count) named tensors, a row for each.
  using Encode = std::function<NamedTensors(int64_t begin, int64_t count)>;
  // Those of texts [first, first + count) of `total`, kept or made now; `key` names the texts and who encodes them, and
  // is a file's name.
  NamedTensors rows(const std::string& key, int64_t first, int64_t count, int64_t total, const Encode& encode);
  // Texts that were made now, and those that were there.
  int64_t encoded = 0, found = 0;

 private:
  const NamedTensors& part(const std::string& key, int64_t begin, int64_t count, const Encode& encode);

  const std::string folder_;
  const int64_t at_once_;
  std::string last_;  // the part that was asked for last is in memory
  NamedTensors of_last_;
};

}  // namespace ditto
