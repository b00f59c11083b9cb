// One tensor as it is kept beside a sample: a file of torch.save (.pth), or a pickle of a NumPy array or a tensor
// (.pickle). Nothing in them is run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtype.h"

namespace ditto::formats {

// Whether a member with this extension is taken for one: .pth, .pt, .pickle or .pkl, and with two dots, as NeMo's
// script names them (000001..pth).
bool is_tensor_name(std::string_view extension);

struct SavedTensor {
  Dtype dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;  // row-major, contiguous, little endian
};

// The one tensor that is in there, maybe inside of a list or a dict; with a `key` that of {key: {"encodings": tensor}},
// as NeMo Imagen keeps texts, whatever else is beside it. Throws Error(data) "WHERE: …" for none or several, for other
// forms, for what would have to be run, wherever it stands, and for what is damaged or larger than limits.h allows.
SavedTensor read_saved_tensor(std::span<const std::byte> bytes, std::string_view where, std::string_view key = {});
// The same, with `bytes` left empty.
SavedTensor saved_tensor_shape(std::span<const std::byte> bytes, std::string_view where, std::string_view key = {});

// The same two, written: what torch.load and NumPy's pickles read, of F32 or F64. The bytes depend on nothing but the
// tensor. Throws Error(data) for other types, and for over 4 GiB.
std::string torch_file(const SavedTensor& tensor);
std::string numpy_pickle(const SavedTensor& tensor);

}  // namespace ditto::formats
