#include "core/formats/tensor/npz.h"

#include <ditto/error.h>
#include <zip.h>

#include <array>
#include <memory>

namespace ditto::formats {

namespace {

constexpr zip_uint16_t kNoTime = 0, kFirstDay = 0x21;  // midnight, 1 January 1980: zip's first

struct Discard {
  void operator()(zip_t* zip) const { zip_discard(zip); }
};

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw Error(ErrorKind::data, path, "cannot be written: " + what);
}

void add(zip_t* zip, const std::string& path, const NpyArray& array, const std::string& header) {
  // The fragments' list is copied, the bytes are read when the archive is closed.
  std::array<zip_buffer_fragment_t, 2> parts{};
  parts[0].data = reinterpret_cast<zip_uint8_t*>(const_cast<char*>(header.data()));
  parts[0].length = header.size();
  parts[1].data = reinterpret_cast<zip_uint8_t*>(const_cast<std::byte*>(array.bytes.data()));
  parts[1].length = array.bytes.size();
  zip_source_t* source = zip_source_buffer_fragment(zip, parts.data(), array.bytes.empty() ? 1 : 2, 0);
  if (!source) refuse(path, zip_strerror(zip));
  const zip_int64_t at = zip_file_add(zip, (array.name + ".npy").c_str(), source, ZIP_FL_ENC_UTF_8);
  if (at < 0) {
    zip_source_free(source);
    refuse(path, zip_strerror(zip));
  }
  const auto index = static_cast<zip_uint64_t>(at);
  if (zip_set_file_compression(zip, index, ZIP_CM_STORE, 0) != 0 ||
      zip_file_set_dostime(zip, index, kNoTime, kFirstDay, 0) != 0)
    refuse(path, zip_strerror(zip));
}

}  // namespace

std::string npy_header(const NpyArray& array) {
  std::string shape;
  for (const auto size : array.shape) shape += std::to_string(size) + (array.shape.size() == 1 ? "," : ", ");
  if (array.shape.size() > 1) shape.resize(shape.size() - 2);
  std::string text = "{'descr': '" + array.dtype + "', 'fortran_order': False, 'shape': (" + shape + "), }";
  constexpr std::size_t kBefore = 10, kAlign = 64;  // magic, version, length; numbers begin at a multiple of 64
  text.append((kAlign - (kBefore + text.size() + 1) % kAlign) % kAlign, ' ');
  text += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(text.size() & 0xFF);
  header += static_cast<char>(text.size() >> 8);
  return header + text;
}

void write_npz(const std::string& path, const std::vector<NpyArray>& arrays) {
  int code = 0;
  std::vector<std::string> headers;
  for (const auto& array : arrays) headers.push_back(npy_header(array));
  std::unique_ptr<zip_t, Discard> zip(zip_open(path.c_str(), ZIP_CREATE | ZIP_TRUNCATE, &code));
  if (!zip) {
    zip_error_t error;
    zip_error_init_with_code(&error, code);
    const std::string text = zip_error_strerror(&error);
    zip_error_fini(&error);
    refuse(path, text);
  }
  for (std::size_t i = 0; i < arrays.size(); ++i) add(zip.get(), path, arrays[i], headers[i]);
  if (zip_close(zip.get()) != 0) refuse(path, zip_strerror(zip.get()));
  zip.release();
}

}  // namespace ditto::formats
