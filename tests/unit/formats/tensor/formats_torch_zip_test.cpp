// PyTorch checkpoints, read without running anything.
#include "core/formats/tensor/torch_zip.h"

#include <doctest/doctest.h>
#include <zip.h>

#include <algorithm>
#include <cstring>

#include "support/files.h"

using namespace ditto::formats;
using namespace std::string_literals;
using ditto::ErrorKind;
using ditto::test::contains;
using ditto::test::error_of;
using ditto::test::golden_format;
using ditto::test::read_text;
using ditto::test::TemporaryFolder;
using ditto::test::write_text;

namespace {

template <class T>
std::vector<T> values(const TorchCheckpoint& checkpoint, std::string_view name) {
  const auto bytes = checkpoint.read(checkpoint.at(name));
  std::vector<T> result(bytes.size() / sizeof(T));
  std::memcpy(result.data(), bytes.data(), bytes.size());
  return result;
}

struct Member {
  std::string name, data;
  bool compressed = false;
};

void write_zip(const std::string& path, const std::vector<Member>& members) {
  zip_t* zip = zip_open(path.c_str(), ZIP_CREATE | ZIP_TRUNCATE, nullptr);
  REQUIRE(zip != nullptr);
  for (const Member& member : members) {
    zip_source_t* source = zip_source_buffer(zip, member.data.data(), member.data.size(), 0);
    const auto index = zip_file_add(zip, member.name.c_str(), source, 0);
    zip_set_file_compression(zip, static_cast<zip_uint64_t>(index), member.compressed ? ZIP_CM_DEFLATE : ZIP_CM_STORE,
                             0);
  }
  REQUIRE(zip_close(zip) == 0);
}

// The refusal of an archive with this pickle and one storage "0" of 16 bytes.
std::string pickle_refusal(const std::string& pickle) {
  const TemporaryFolder folder;
  write_zip(folder / "x.pt", {{"x/data.pkl", pickle}, {"x/data/0", std::string(16, 'f')}});
  return error_of(ErrorKind::checkpoint, [&] { TorchCheckpoint::open(folder / "x.pt"); });
}

std::string text(const std::string& value) { return "\x8c"s + static_cast<char>(value.size()) + value; }
std::string pickled_int(int value) { return "K"s + static_cast<char>(value); }
std::string global(const std::string& module, const std::string& name) { return "c" + module + "\n" + name + "\n"; }

std::string storage(const std::string& type = "FloatStorage", int count = 4, const std::string& key = "0") {
  return "(" + text("storage") + global("torch", type) + text(key) + text("cpu") + pickled_int(count) + "tQ";
}

// {"w": tensor} in protocol 2. `sizes` and `strides` are pickled tuples.
std::string tensor(const std::string& sizes, const std::string& strides, int offset = 0,
                   const std::string& from = storage()) {
  return "\x80\x02}" + text("w") + global("torch._utils", "_rebuild_tensor_v2") + "(" + from + pickled_int(offset) +
         sizes + strides + "\x89" + global("collections", "OrderedDict") + ")RtRs.";
}

std::string one(int value) { return pickled_int(value) + "\x85"; }

}  // namespace

TEST_CASE("tensors of a checkpoint are found by dotted names, whatever their layout") {
  const TorchCheckpoint checkpoint = TorchCheckpoint::open(golden_format("checkpoint.pt").string());
  const TorchTensor& weight = checkpoint.at("model.blocks.0.weight");
  CHECK(weight.dtype == Dtype::f32);
  CHECK(weight.shape == std::vector<std::int64_t>{4, 6});
  const auto ramp = [](int i) { return static_cast<float>(i) / 8 - 1; };
  const auto plain = values<float>(checkpoint, "model.blocks.0.weight");
  REQUIRE(plain.size() == 24);
  for (int i = 0; i < 24; ++i) CHECK(plain[static_cast<std::size_t>(i)] == ramp(i));
  const auto transposed = values<float>(checkpoint, "model.transposed");
  for (int i = 0; i < 24; ++i) CHECK(transposed[static_cast<std::size_t>(i)] == ramp(i % 4 * 6 + i / 4));
  CHECK(values<float>(checkpoint, "model.slice") ==
        std::vector<float>{ramp(8), ramp(9), ramp(10), ramp(14), ramp(15), ramp(16)});
  CHECK(values<float>(checkpoint, "model.expanded") ==
        std::vector<float>{ramp(0), ramp(1), ramp(2), ramp(0), ramp(1), ramp(2)});
  CHECK(values<double>(checkpoint, "model.scalar") == std::vector<double>{2.5});
  CHECK(checkpoint.at("model.scalar").shape.empty());
  CHECK(checkpoint.read(checkpoint.at("model.empty")).empty());
  CHECK(values<float>(checkpoint, "model.parameter") == std::vector<float>{ramp(0), ramp(1)});
  CHECK(checkpoint.at("model.blocks.0.bias").dtype == Dtype::bf16);
  CHECK(values<std::uint16_t>(checkpoint, "model.blocks.0.bias") ==
        std::vector<std::uint16_t>{0xBF80, 0xBF60, 0xBF40, 0xBF20});
  CHECK(checkpoint.at("model.float8").dtype == Dtype::f8_e4m3);
  CHECK(values<float>(checkpoint, "ema.blocks.0.weight")[1] == 2 * ramp(1));
  CHECK(values<float>(checkpoint, "opt.state.0.exp_avg").size() == 3);
  CHECK(checkpoint.tensors().front().name == "model.blocks.0.weight");
}

TEST_CASE("plain values are kept, and classes are kept as names only") {
  const TorchCheckpoint checkpoint = TorchCheckpoint::open(golden_format("checkpoint.pt").string());
  CHECK(std::get<std::int64_t>(checkpoint.scalars().at("step")) == 12);
  CHECK(std::get<std::string>(checkpoint.scalars().at("args.model")) == "DiT-S/2");
  CHECK(std::get<double>(checkpoint.scalars().at("args.lr")) == 1e-4);
  CHECK(std::get<bool>(checkpoint.scalars().at("args.ema")));
  REQUIRE(checkpoint.opaque().size() == 1);
  CHECK(checkpoint.opaque()[0].name == "args");
  CHECK(checkpoint.opaque()[0].class_name == "argparse.Namespace");
  const auto at = [&](const char* name) { return error_of(ErrorKind::checkpoint, [&] { checkpoint.at(name); }); };
  CHECK(contains(at("args"), "'args' is a argparse.Namespace"));
  CHECK(contains(at("step"), "'step' is a plain value"));
  CHECK(contains(at("model.blocks.0.wieght"), "nearest name in it is 'model.blocks.0.weight'"));
}

TEST_CASE("pickles of protocol 4 are read") {
  const TorchCheckpoint checkpoint = TorchCheckpoint::open(golden_format("protocol4.pt").string());
  CHECK(values<float>(checkpoint, "weight") == std::vector<float>{-1, -0.875f});
  REQUIRE(checkpoint.opaque().size() == 1);
  CHECK(checkpoint.opaque()[0].class_name == "collections.Counter");
}

TEST_CASE("a call in a pickle is never made") {
  const TemporaryFolder folder;
  const std::string target = folder / "made";
  const std::string pickle = "\x80\x02}" + text("w") + global("os", "system") + text("touch " + target) + "\x85Rs.";
  write_zip(folder / "x.pt", {{"x/data.pkl", pickle}});
  const TorchCheckpoint checkpoint = TorchCheckpoint::open(folder / "x.pt");
  CHECK_FALSE(std::filesystem::exists(target));
  CHECK(contains(error_of(ErrorKind::checkpoint, [&] { checkpoint.at("w"); }), "os.system"));
}

TEST_CASE("a small pickle written by hand is read") {
  CHECK(pickle_refusal(tensor(one(4), one(1))) == "");
  CHECK(pickle_refusal(tensor(one(2), one(2))) == "");
  CHECK(pickle_refusal(tensor(")", ")", 3)) == "");
  CHECK(pickle_refusal(tensor(one(0), one(1), 4)) == "");
}

TEST_CASE("pickles that are damaged or hostile are refused") {
  struct Case {
    std::string pickle;
    std::string_view words;
  };
  std::string deep = "\x80\x02";
  for (int i = 0; i < 1000; ++i) deep += "]";
  for (int i = 0; i < 999; ++i) deep += "a";
  std::string bomb = "\x80\x02]" + text("x") + "a";  // a list of ten times a list of ten times …
  for (int i = 0; i < 12; ++i) {
    bomb += "q"s + static_cast<char>(i) + "]";
    for (int j = 0; j < 10; ++j) bomb += "h"s + static_cast<char>(i) + "a";
  }
  const std::string huge = "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"s;
  const Case cases[] = {
      {"", "cut off"},
      {"\x80\x02", "cut off"},
      {"\x80\x09N.", "unknown protocol"},
      {"\x80\x02.", "nothing on the stack"},
      {"\x80\x02h\x05.", "not stored"},
      {"\x80\x02t.", "no mark"},
      {"\x80\x02\x8c\x09"
       "abc",
       "cut off"},
      {"\x80\x02\x8d\xff\xff\xff\xff\xff\xff\xff\xff"s, "cut off"},
      {"\x80\x02\x8c\x01\xff.", "not UTF-8"},
      {"\x80\x02P1\n.", "opcode 0x50"},
      {"\x80\x02i", "opcode 0x69"},
      {"\x80\x02NN\x85R.", "not of a named function"},
      {"\x80\x02NNa.", "no list"},
      {"\x80\x02NNNs.", "no dict"},
      {"\x80\x02}(Nu.", "no value"},
      {"\x80\x02}]Ns.", "key"},
      {"\x80\x02NN\x93.", "no string"},
      {"\x80\x02"
       "cos",
       "cut off"},
      {"\x80\x02]q"
       "\0h\0a."s,
       "deeper than 100"},  // a list that holds itself
      {deep + ".", "deeper than 100"},
      {bomb + ".", "64 MiB"},
      {tensor(one(5), one(1)), "outside its storage"},
      {tensor(one(4), one(2)), "outside its storage"},
      {tensor(one(4), one(1), 1), "outside its storage"},
      {tensor(one(4), ")"), "strides"},
      {tensor("K\x04", one(1)), "no tuple"},
      {tensor("J\xff\xff\xff\xff\x85"s, one(1)), "whole number"},
      {tensor(huge + huge + "\x86", "K\x01K\x01\x86"), "63 bits"},
      {tensor(huge + "\x85", one(0)), "63 bits"},
      {tensor(one(4), huge + "\x85"), "63 bits"},
      {tensor(one(4), one(1), 0, storage("QInt8Storage")), "torch.QInt8Storage"},
      {tensor(one(4), one(1), 0, storage("FloatStorage", 4, "1")), "no member x/data/1"},
      {tensor(one(4), one(1), 0, storage("FloatStorage", 4, "../0")), "no member"},
      {tensor(one(4), one(1), 0, storage("FloatStorage", 5)), "need 20"},
      {tensor(one(4), one(1), 0, "N"), "without a storage"},
      {tensor(one(4), one(1), 0, text("module") + "Q"), "without a storage"},
      {"\x80\x02" + global("torch._utils", "_rebuild_tensor_v2") + ")R.", "too few arguments"},
      {"\x80\x02" + global("torch._utils", "_rebuild_parameter") + ")R.", "too few arguments"},
  };
  for (const Case& one_case : cases) {
    CAPTURE(one_case.pickle);
    CAPTURE(one_case.words);
    const std::string message = pickle_refusal(one_case.pickle);
    CHECK(contains(message, one_case.words));
  }
}

TEST_CASE("archives that torch.save does not write are refused") {
  const TemporaryFolder folder;
  const auto open = [&] { TorchCheckpoint::open(folder / "x.pt"); };
  const auto words = [&] { return error_of(ErrorKind::checkpoint, open); };
  CHECK(contains(words(), "x.pt"));
  write_text(folder / "x.pt", "hello");
  CHECK(contains(words(), "zip archive"));
  write_text(folder / "x.pt", "\x80\x02N.");
  CHECK(contains(words(), "old form of torch.save"));
  write_zip(folder / "x.pt", {{"x/readme", "hello"}});
  CHECK(contains(words(), "no data.pkl"));
  write_zip(folder / "x.pt", {{"x/data.pkl", "\x80\x02N."}, {"y/data.pkl", "\x80\x02N."}});
  CHECK(contains(words(), "two data.pkl"));
  write_zip(folder / "x.pt", {{"x/data.pkl", "\x80\x02" + std::string(5000, 'N') + ".", true}});
  CHECK(contains(words(), "compressed"));
  write_zip(folder / "x.pt", {{"x/data.pkl", "\x80\x02N."}, {"x/byteorder", "big"}});
  CHECK(contains(words(), "big-endian"));
}

TEST_CASE("every cut of a checkpoint and every flipped byte is an error or a sound checkpoint") {
  const TemporaryFolder folder;
  const std::string whole = read_text(golden_format("checkpoint.pt"));
  const std::string path = folder / "x.pt";
  for (std::size_t length = 0; length < whole.size(); length += 7) {
    write_text(path, std::string_view(whole).substr(0, length));
    CHECK(error_of(ErrorKind::checkpoint, [&] { TorchCheckpoint::open(path); }) != "");
  }
  const std::size_t pickle = whole.find("\x80\x02");
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x21);
    write_text(path, flipped);
    bool sound = false;
    try {
      const TorchCheckpoint checkpoint = TorchCheckpoint::open(path);
      for (const TorchTensor& tensor : checkpoint.tensors()) checkpoint.read(tensor);
      sound = true;  // a byte that is not used: padding, times, a storage that no tensor reads
    } catch (const ditto::Error& error) {
      REQUIRE(error.kind() == ErrorKind::checkpoint);
    }
    if (at >= pickle && at < pickle + 1000) REQUIRE_FALSE(sound);  // its checksum tells
  }
}
