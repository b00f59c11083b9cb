// Latents and embeddings as they are kept beside a sample, read without running anything.
#include "core/formats/tensor/saved_tensor.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "support/files.h"

using namespace ditto::formats;
using namespace std::string_literals;
using ditto::ErrorKind;
using ditto::test::as_bytes;
using ditto::test::contains;
using ditto::test::error_of;
using ditto::test::golden_format;
using ditto::test::read_text;
using Shape = std::vector<std::int64_t>;

namespace {

std::string refusal(std::string_view bytes) {
  return error_of(ErrorKind::data, [&] { read_saved_tensor(as_bytes(bytes), "a.tar:0.pickle"); });
}

// Of numbers that every dtype here holds exactly.
double number(const SavedTensor& tensor, std::size_t at) {
  const auto each = dtype_bits(tensor.dtype) / 8;
  const auto* from = tensor.bytes.data() + at * each;
  if (tensor.dtype == Dtype::f64) {
    double value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  std::uint32_t bits = 0;
  std::memcpy(&bits, from, each);
  if (tensor.dtype == Dtype::bf16) bits <<= 16;
  if (tensor.dtype == Dtype::f16) {  // normal numbers and zero
    const int exponent = static_cast<int>(bits >> 10 & 31);
    const double size = exponent == 0 ? 0 : std::ldexp(1024 + (bits & 1023), exponent - 25);
    return bits >> 15 ? -size : size;
  }
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace

TEST_CASE("tensors of torch.save and pickles of arrays and tensors are read") {
  const std::vector<std::tuple<std::string, Dtype, Shape>> files{
      {"saved_bf16.pth", Dtype::bf16, {2, 3}},      {"saved_dict.pth", Dtype::f32, {2, 3}},
      {"saved_numpy.pickle", Dtype::f16, {2, 3}},   {"saved_numpy5.pickle", Dtype::f32, {2, 3}},
      {"saved_columns.pickle", Dtype::f64, {2, 3}}, {"saved_tensor.pickle", Dtype::bf16, {1, 2, 3}},
      {"saved_slice.pickle", Dtype::f32, {2, 3}}};
  for (const auto& [name, dtype, shape] : files) {
    CAPTURE(name);
    const auto bytes = read_text(golden_format(name));
    const auto tensor = read_saved_tensor(as_bytes(bytes), name);
    CHECK((tensor.dtype == dtype));
    CHECK(tensor.shape == shape);
    CHECK(saved_tensor_shape(as_bytes(bytes), name).shape == shape);
    REQUIRE(tensor.bytes.size() == 6 * dtype_bits(dtype) / 8);
    for (std::size_t i = 0; i < 6; ++i) CHECK(number(tensor, i) == static_cast<double>(i) / 8 - 1);
  }
}

TEST_CASE("a tensor that is cut off anywhere is refused, as data, with its place") {
  for (const char* name : {"saved_numpy.pickle", "saved_tensor.pickle", "saved_old.pth", "saved_bf16.pth"}) {
    const auto bytes = read_text(golden_format(name));
    for (std::size_t size = 0; size < bytes.size(); size += 1 + bytes.size() / 200)
      CHECK(refusal(bytes.substr(0, size)).starts_with("a.tar:0.pickle"));
  }
}

TEST_CASE("nothing of a pickle is run, and what is no tensor is named") {
  CHECK(contains(refusal("\x80\x04"
                         "cposix\nsystem\nX\x02\0\0\0ls\x85R."s),
                 "holds a posix.system, which is not run"));
  CHECK(contains(refusal("\x80\x04"
                         "K\x01."),
                 "holds no tensor"));
  CHECK(contains(refusal(read_text(golden_format("saved_old.pth"))), "is the old form of torch.save"));
  CHECK(contains(refusal("plain text"), "is neither a file of torch.save nor a pickle"));
  const auto array = read_text(golden_format("saved_numpy.pickle"));
  const auto body = array.substr(2 + 9, array.size() - 2 - 9 - 1);  // behind protocol and frame, before the stop
  CHECK(contains(refusal("\x80\x04" + body + body + "\x86."), "holds several tensors"));
  auto other = array;
  other.replace(other.find("f2"), 2, "i2");
  CHECK(contains(refusal(other), "holds an array of i2; expected f2, f4 or f8"));
  auto large = array;
  large.replace(large.find("K\x02K\x03\x86"), 5, "K\x02K\x04\x86");
  CHECK(contains(refusal(large), "holds an array of 16 bytes by its shape, and 12 are there"));
}

TEST_CASE("what is written is read as it was, and its bytes depend on nothing else") {
  const float numbers[] = {1, -2.5, 0, 4096, 1e-30F, 7};
  const double doubles[] = {0.1, -1e300};
  SavedTensor single{Dtype::f32, {2, 1, 3}, {}}, wide{Dtype::f64, {2}, {}}, none{Dtype::f32, {0, 4}, {}};
  single.bytes.assign(std::as_bytes(std::span(numbers)).begin(), std::as_bytes(std::span(numbers)).end());
  wide.bytes.assign(std::as_bytes(std::span(doubles)).begin(), std::as_bytes(std::span(doubles)).end());
  for (const auto& tensor : {single, wide, none})
    for (const auto write : {torch_file, numpy_pickle}) {
      const auto bytes = write(tensor);
      const auto read = read_saved_tensor(as_bytes(bytes), "a.tar:0.pth");
      CHECK(read.dtype == tensor.dtype);
      CHECK(read.shape == tensor.shape);
      CHECK((read.bytes == tensor.bytes));
      CHECK(write(tensor) == bytes);
    }
  const SavedTensor half{Dtype::f16, {1}, std::vector<std::byte>(2)};
  CHECK(contains(error_of(ErrorKind::data, [&] { torch_file(half); }), "of F16 is not written so"));
}

TEST_CASE("of NeMo Imagen's pickles that text is read that a key names, whatever is beside it") {
  const auto bytes = read_text(golden_format("saved_imagen.pickle"));
  const auto text = read_saved_tensor(as_bytes(bytes), "a.pickle", "embeddings_t5_xxl");
  CHECK((text.dtype == Dtype::f16));
  CHECK(text.shape == Shape{2, 3});
  for (std::size_t i = 0; i < 6; ++i) CHECK(number(text, i) == static_cast<double>(i) / 8 - 1);
  CHECK(saved_tensor_shape(as_bytes(bytes), "a.pickle", "embeddings_clip").shape == Shape{2, 4});
  const auto refused = [](std::string_view pickle, std::string_view key) {
    return error_of(ErrorKind::data, [&] { read_saved_tensor(as_bytes(pickle), "a.tar:0.pickle", key); });
  };
  CHECK(contains(refused(bytes, "t5"), "has no \"t5\", only: \"note\", \"embeddings_clip\", \"embeddings_t5_xxl\""));
  CHECK(contains(refused(bytes, "note"), "has no dict where \"encodings\" should stand"));
  CHECK(
      contains(refused(read_text(golden_format("saved_numpy.pickle")), "t5"), "has no dict where \"t5\" should stand"));
  CHECK(contains(refused(read_text(golden_format("saved_dict.pth")), "latent"), "has no \"latent.encodings\""));
  CHECK(refusal(bytes).find("i8") != std::string::npos);  // without a key all of it is read
}

TEST_CASE("a pickle with code is refused by its name, also where the code stands beside the text that is asked for") {
  auto bytes = read_text(golden_format("saved_imagen.pickle"));
  const auto at = bytes.find(
      "\x8c\x06"
      "a text"s);
  REQUIRE(at != std::string::npos);
  bytes.replace(at, 8, "cposix\nsystem\nX\x02\0\0\0ls\x85R"s);  // frames say lengths, which nobody needs
  const auto error =
      error_of(ErrorKind::data, [&] { read_saved_tensor(as_bytes(bytes), "a.tar:0.pickle", "embeddings_t5_xxl"); });
  CHECK(contains(error, "a.tar:0.pickle: holds a posix.system, which is not run"));
}
