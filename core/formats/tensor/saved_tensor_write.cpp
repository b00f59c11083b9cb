// What torch.save and pickle.dumps of a NumPy array leave, in the opcodes of protocol 2 to 4 (pickletools says what
// each does).
#include <array>
#include <string>

#include <ditto/error.h>

#include "core/formats/tensor/npz.h"
#include "core/formats/tensor/saved_tensor.h"

namespace ditto::formats {

namespace {

constexpr std::uint64_t kFirstDay = 0x21;  // 1 January 1980: zip's first
constexpr std::uint64_t kVersion = 20;     // of zip that a reader needs
constexpr std::uint64_t kMost = 0xFFFFFFFE;

void put(std::string& to, std::uint64_t number, int bytes) {
  for (int i = 0; i < bytes; ++i) to += static_cast<char>(number >> (8 * i));
}

void put_integer(std::string& to, std::int64_t number) {  // LONG1
  to += '\x8a';
  to += '\x08';
  put(to, static_cast<std::uint64_t>(number), 8);
}

void put_text(std::string& to, std::string_view text) {  // BINUNICODE
  to += 'X';
  put(to, text.size(), 4);
  to += text;
}

void put_tuple(std::string& to, const std::vector<std::int64_t>& numbers) {
  to += '(';
  for (const auto number : numbers) put_integer(to, number);
  to += 't';
}

std::vector<std::int64_t> strides_of(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

// A stored zip of these files, whose sizes and places fit into 32 bits.
std::string zip_of(const std::vector<std::pair<std::string, std::string_view>>& files) {
  std::string zip, directory;
  for (const auto& [name, bytes] : files) {
    std::string about;
    put(about, kVersion, 2);
    put(about, 0, 6);  // no flags; stored; midnight
    put(about, kFirstDay, 2);
    put(about, crc32(std::as_bytes(std::span(bytes))), 4);
    for (int i = 0; i < 2; ++i) put(about, bytes.size(), 4);
    put(about, name.size(), 2);
    put(about, 0, 2);
    directory += "PK\1\2";
    put(directory, kVersion, 2);
    directory += about;
    put(directory, 0, 10);  // no comment, the first disk, no attributes
    put(directory, zip.size(), 4);
    directory += name;
    zip += "PK\3\4" + about + name;
    zip += bytes;
  }
  if (zip.size() + directory.size() > kMost)
    throw Error(ErrorKind::data, "a tensor", "is larger than a sample's member can be");
  const auto at = zip.size();
  zip += directory + "PK\5\6";
  put(zip, 0, 4);
  for (int i = 0; i < 2; ++i) put(zip, files.size(), 2);
  put(zip, directory.size(), 4);
  put(zip, at, 4);
  put(zip, 0, 2);
  return zip;
}

[[noreturn]] void refuse(Dtype dtype) {
  throw Error(ErrorKind::data, "a tensor", "of " + std::string(dtype_name(dtype)) + " is not written so",
              "convert it to F32 or F64");
}

}  // namespace

std::string torch_file(const SavedTensor& tensor) {
  if (tensor.dtype != Dtype::f32 && tensor.dtype != Dtype::f64) refuse(tensor.dtype);
  const bool single = tensor.dtype == Dtype::f32;
  std::string data =
      "\x80\x02"
      "ctorch._utils\n_rebuild_tensor_v2\n((";
  put_text(data, "storage");
  data += single ? "ctorch\nFloatStorage\n" : "ctorch\nDoubleStorage\n";
  put_text(data, "0");
  put_text(data, "cpu");
  put_integer(data, static_cast<std::int64_t>(tensor.bytes.size() / (single ? 4 : 8)));
  data += "tQK";  // the storage, by what stands before; at its
  data += '\0';   // first number
  put_tuple(data, tensor.shape);
  put_tuple(data, strides_of(tensor.shape));
  data +=
      "\x89"
      "ccollections\nOrderedDict\n)RtR.";  // no gradient, no hooks
  const std::string_view numbers(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  return zip_of({{"archive/data.pkl", data},
                 {"archive/byteorder", "little"},
                 {"archive/data/0", numbers},
                 {"archive/version", "3\n"}});
}

std::string numpy_pickle(const SavedTensor& tensor) {
  if (tensor.dtype != Dtype::f32 && tensor.dtype != Dtype::f64) refuse(tensor.dtype);
  if (tensor.bytes.size() > kMost) throw Error(ErrorKind::data, "an array", "is larger than a sample's member can be");
  std::string data =
      "\x80\x03"
      "cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK";
  data += '\0';
  data +=
      "\x85"
      "C\x01"
      "b\x87R(K\x01";  // of no numbers; its state: version 1,
  put_tuple(data, tensor.shape);
  data += "cnumpy\ndtype\n";
  put_text(data, tensor.dtype == Dtype::f32 ? "f4" : "f8");
  data += "\x89\x88\x87R(K\x03";
  put_text(data, "<");
  data += "NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK";  // little endian, without fields
  data += '\0';
  data +=
      "tb\x89"
      "B";  // rows first
  put(data, tensor.bytes.size(), 4);
  data.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  return data + "tb.";
}

}  // namespace ditto::formats
