// safetensors: equal bytes to the reference writer, and a reader that refuses everything else.
#include "core/formats/tensor/safetensors.h"

#include <doctest/doctest.h>

#include <cstring>

#include "support/files.h"

using namespace ditto::formats;
using ditto::ErrorKind;
using ditto::test::as_bytes;
using ditto::test::contains;
using ditto::test::error_of;
using ditto::test::golden_format;
using ditto::test::read_text;
using ditto::test::TemporaryFolder;

namespace {

std::string file_of(std::string_view header, std::size_t data_bytes, std::uint64_t length) {
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file.append(header).append(data_bytes, '\1');
}

std::string file_of(std::string_view header, std::size_t data_bytes = 0) {
  return file_of(header, data_bytes, header.size());
}

std::string header_refusal(std::string_view file) {
  return error_of(ErrorKind::data, [&] { SafetensorsReader::parse(as_bytes(file), "x.safetensors", ErrorKind::data); });
}

SafetensorsReader parse(std::string_view file) { return SafetensorsReader::parse(as_bytes(file), "x.safetensors"); }

constexpr std::string_view kOne = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";

}  // namespace

TEST_CASE("the reference's file is read, and written again byte for byte") {
  const std::string path = golden_format("reference.safetensors").string();
  const SafetensorsReader reader = SafetensorsReader::open(path);
  CHECK(reader.metadata() == Metadata{{"format", "pt"}});
  REQUIRE(reader.entries().size() == 11);
  const SafetensorsEntry& weight = reader.at("blocks.0.weight");
  CHECK(weight.dtype == Dtype::f32);
  CHECK(weight.shape == std::vector<std::int64_t>{2, 3});
  float values[6];
  REQUIRE(weight.bytes == sizeof values);
  reader.read(weight, std::as_writable_bytes(std::span(values)));
  for (int i = 0; i < 6; ++i) CHECK(values[i] == static_cast<float>(i) / 8 - 1);
  CHECK(reader.at("step").shape.empty());
  CHECK(reader.at("empty").bytes == 0);
  CHECK(reader.find("naïve \"name\"\\") != nullptr);

  const TemporaryFolder folder;
  std::vector<TensorDeclaration> declared;
  for (auto entry = reader.entries().rbegin(); entry != reader.entries().rend(); ++entry)
    declared.push_back({entry->name, entry->dtype, entry->shape});
  SafetensorsWriter writer(folder / "again.safetensors", declared, reader.metadata());
  for (const SafetensorsEntry& entry : reader.entries()) {
    const auto data = reader.read(entry);
    const std::size_t half = data.size() / 2;  // in two pieces, the second first
    writer.write(entry.name, std::span(data).subspan(half), half);
    writer.write(entry.name, std::span(data).first(half));
  }
  writer.finish(Sync::fsync);
  CHECK(read_text(folder / "again.safetensors") == read_text(path));
  CHECK(writer.file_bytes() == read_text(path).size());
}

TEST_CASE("a tensor that is not there is answered with the nearest name") {
  const SafetensorsReader reader = SafetensorsReader::open(golden_format("reference.safetensors").string());
  CHECK(contains(error_of(ErrorKind::checkpoint, [&] { reader.at("blocks.0.wieght"); }), "'blocks.0.weight'"));
  CHECK(reader.find("blocks") == nullptr);
}

TEST_CASE("what the format allows is read") {
  CHECK(parse(file_of("{}")).entries().empty());
  CHECK(parse(file_of("{}  \n ")).entries().empty());
  CHECK(parse(file_of(kOne, 8)).at("a").offset == 8 + kOne.size());
  CHECK(parse(file_of("  " + std::string(kOne), 8)).entries().size() == 1);
  CHECK(parse(file_of(R"({"__metadata__":null})")).metadata().empty());
  CHECK(parse(file_of(R"({"__metadata__":{"a":"b"},"":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})", 1))
            .at("")
            .bytes == 1);
  CHECK(parse(file_of(R"({"../../etc/x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1)).entries().size() == 1);
  CHECK(parse(file_of(R"({"a":{"extra":{"shape":[{}],"b":[1.5,null]},"dtype":"F4","shape":[2],"data_offsets":[0,1]}})",
                      1))
            .at("a")
            .bytes == 1);
  // Listed in any order; zero-sized tensors may stand anywhere.
  const auto reader = parse(file_of(
      R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},"e":{"dtype":"U8","shape":[0],"data_offsets":[1,1]},)"
      R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
      2));
  CHECK(reader.entries()[0].name == "a");
  CHECK(reader.entries()[2].name == "b");
}

TEST_CASE("files that are no safetensors, or damaged, are refused") {
  struct Case {
    std::string file;
    std::string_view words;
  };
  const auto tensor = [](std::string_view fields) { return file_of("{\"a\":{" + std::string(fields) + "}}", 8); };
  std::string dims = "1";
  for (int i = 0; i < 64; ++i) dims += ",1";
  const std::string deep = "{\"a\":{\"x\":" + std::string(200, '[') + std::string(200, ']') + "}}";
  const Case cases[] = {
      {"", "0 bytes"},
      {std::string(7, '\0'), "7 bytes"},
      {file_of("", 0), "does not start with '{'"},
      {file_of("{}", 0, 3), "cut off"},
      {file_of("{}", 0, ~0ull), "over 100,000,000"},
      {file_of("{}", 0, 100'000'001), "over 100,000,000"},
      {file_of("[]"), "does not start with '{'"},
      {file_of("\xEF\xBB\xBF{}"), "does not start with '{'"},
      {file_of("{"), "not JSON"},
      {file_of("{} x"), "not JSON"},
      {file_of("{},"), "not JSON"},
      {file_of(std::string("{}\0\0", 4)), "NUL"},
      {file_of("{\"a\":{\"dtype\":\"\xff\"}}"), "not JSON"},
      {file_of(R"({"\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"), "not JSON"},
      {file_of(R"({"a\u0000":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"), "control character"},
      {file_of(R"({"a\n":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"), "control character"},
      {file_of(R"({"a":1})"), "tensor 'a'"},
      {file_of(R"({"a":null})"), "tensor 'a'"},
      {file_of(R"({"a":[]})"), "tensor 'a'"},
      {file_of(
           R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"),
       "tensor 'a' is there twice"},
      {file_of(R"({"__metadata__":{},"__metadata__":{}})"), "twice"},
      {file_of(R"({"__metadata__":{"a":"1","a":"1"}})"), "twice"},
      {file_of(R"({"__metadata__":{"a":1}})"), "a string is expected"},
      {file_of(R"({"__metadata__":{"a":{}}})"), "a string is expected"},
      {file_of(R"({"__metadata__":[]})"), "__metadata__"},
      {file_of(R"({"__metadata__":"x"})"), "__metadata__"},
      {tensor(R"("shape":[2],"data_offsets":[0,8])"), "no dtype"},
      {tensor(R"("dtype":"F32","data_offsets":[0,8])"), "no shape"},
      {tensor(R"("dtype":"F32","shape":[2])"), "data_offsets"},
      {tensor(R"("dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8])"), "twice"},
      {tensor(R"("dtype":"F33","shape":[2],"data_offsets":[0,8])"), "'F33' is unknown"},
      {tensor(R"("dtype":3,"shape":[2],"data_offsets":[0,8])"), "'dtype' is a number"},
      {tensor(R"("dtype":"F32","shape":2,"data_offsets":[0,8])"), "'shape' is a number"},
      {tensor(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), "negative"},
      {tensor(R"("dtype":"F32","shape":[-0],"data_offsets":[0,8])"), "negative"},
      {tensor(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), "whole numbers"},
      {tensor(R"("dtype":"F32","shape":[2e0],"data_offsets":[0,8])"), "whole numbers"},
      {tensor(R"("dtype":"F32","shape":["2"],"data_offsets":[0,8])"), "whole numbers"},
      {tensor(R"("dtype":"F32","shape":[[2]],"data_offsets":[0,8])"), "whole numbers"},
      {tensor(R"("dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,8])"), "whole numbers"},
      {tensor(R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8])"), "63 bits"},
      {tensor(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8])"), "64 bits"},
      {tensor(R"("dtype":"F32","shape":[1152921504606846976],"data_offsets":[0,8])"), "64 bits"},
      {tensor("\"dtype\":\"U8\",\"shape\":[" + dims + "],\"data_offsets\":[0,1]"), "64 dims"},
      {tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0])"), "two numbers"},
      {tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,8])"), "two numbers"},
      {tensor(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), "ends before"},
      {tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), "need 8"},
      {tensor(R"("dtype":"F4","shape":[3],"data_offsets":[0,2])"), "whole bytes"},
      {file_of(deep, 0), "deeper than 128"},
      {file_of(kOne, 7), "cut off"},
      {file_of(kOne, 9), "belong to no tensor"},
      {file_of("{}", 1), "belong to no tensor"},
      {file_of(
           R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
           3),
       "tensor 'b'"},
      {file_of(
           R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
           3),
       "tensor 'b'"},
      {file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2), "tensor 'a'"},
      {file_of(
           R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[1,1]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
           2),
       "tensor 'a'"},
  };
  for (const Case& one : cases) {
    CAPTURE(one.file);
    CAPTURE(one.words);
    const std::string message = header_refusal(one.file);
    CHECK(message.starts_with("x.safetensors: "));
    CHECK(contains(message, one.words));
  }
}

TEST_CASE("every cut and every flipped bit of a header is an error or a sound file") {
  const std::string whole = read_text(golden_format("reference.safetensors"));
  for (std::size_t length = 0; length < whole.size(); ++length) CHECK(header_refusal(whole.substr(0, length)) != "");
  std::uint64_t header = 0;
  std::memcpy(&header, whole.data(), 8);
  for (std::size_t bit = 0; bit < 8 * (8 + header); ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    if (!header_refusal(flipped).empty()) continue;
    std::uint64_t bytes = 0;  // then every byte belongs to a tensor
    const SafetensorsReader reader = parse(flipped);
    for (const SafetensorsEntry& entry : reader.entries()) bytes += entry.bytes;
    CHECK(8 + header + bytes == whole.size());
  }
}

TEST_CASE("the writer refuses what the reader would") {
  const TemporaryFolder folder;
  const auto refused = [&](std::vector<TensorDeclaration> tensors) {
    return error_of(ErrorKind::checkpoint, [&] { SafetensorsWriter(folder / "x", tensors); });
  };
  CHECK(contains(refused({{"a", Dtype::f32, {1}}, {"a", Dtype::f64, {1}}}), "twice"));
  CHECK(contains(refused({{"a\n", Dtype::f32, {1}}}), "may be named"));
  CHECK(contains(refused({{"__metadata__", Dtype::f32, {1}}}), "may be named"));
  CHECK(contains(refused({{"\xff", Dtype::f32, {1}}}), "UTF-8"));
  CHECK(contains(refused({{"a", Dtype::f32, {-1}}}), "negative"));
  CHECK(contains(refused({{"a", Dtype::f32, {1ll << 40, 1ll << 40}}}), "64 bits"));
  CHECK(contains(error_of(ErrorKind::checkpoint, [&] { SafetensorsWriter(folder / "no/x", {}); }), "No such file"));
}

TEST_CASE("an unfinished or overfull write is a mistake of the program") {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder / "x", {{"a", Dtype::u8, {4}}});
  const std::string data(5, 'x');
  CHECK_THROWS_AS(writer.finish(), std::logic_error);
  CHECK_THROWS_AS(writer.write("a", as_bytes(data)), std::logic_error);
  CHECK_THROWS_AS(writer.write("b", as_bytes(data).first(1)), std::logic_error);
  writer.write("a", as_bytes(data).first(4));
  writer.finish();
  CHECK(SafetensorsReader::open(folder / "x").at("a").bytes == 4);
}

TEST_CASE("a full disk is an error that names the file") {
  SafetensorsWriter* writer = nullptr;
  const std::string message = error_of(ErrorKind::checkpoint, [&] {
    writer = new SafetensorsWriter("/dev/full", {{"a", Dtype::u8, {1}}});
  });
  delete writer;
  CHECK(contains(message, "/dev/full: cannot be written: No space left"));
}
