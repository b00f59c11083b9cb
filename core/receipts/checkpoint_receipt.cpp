#include "core/receipts/checkpoint_receipt.h"

#include "core/checkpoint/reader.h"
#include "core/receipts/tensor_hash.h"

namespace ditto {

namespace {

HashSum hash_of(checkpoint::Reader& reader, const checkpoint::Section& section) {
  HashSum sum;
  for (const auto& [name, tensor] : section) {
    const checkpoint::Dims zeros(tensor.shape.size(), 0);
    for (const auto& part : reader.cover(name, tensor, {zeros, tensor.shape})) {
      TensorHash hash;
      hash.add(HashKey(name), tensor.shape, {{part.box.start, zeros, part.box.size}}, reader.read(tensor, part));
      sum += hash.sum();
    }
  }
  return sum;
}

}  // namespace

Receipt receipt_of_checkpoint(const std::string& path) {
  checkpoint::Reader reader(path);
  Receipt receipt;
  receipt.step = reader.state().step;
  receipt.begins.emplace();
  receipt.parts.emplace_back("weights", hash_of(reader, reader.index().section(checkpoint::kModel)).text());
  if (const auto& average = reader.index().section(checkpoint::kEma); !average.empty())
    receipt.parts.emplace_back(kAverage, hash_of(reader, average).text());
  return receipt;
}

}  // namespace ditto
