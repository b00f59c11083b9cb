// Sets prepared for Megatron-Energon (tests/golden/energon: by itself), read by the plugin webdataset.
#include <doctest/doctest.h>
#include <torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include <ditto/data.h>
#include <ditto/error.h>

#include "core/data/loader.h"
#include "core/formats/text/yaml.h"
#include "tests/support/open_plugin.h"

namespace {

namespace fs = std::filesystem;
using ditto::Error;
using ditto::ErrorKind;
using ditto::OptionValue;
using ditto::SplitOf;
using Options = std::map<std::string, OptionValue>;
using Strings = std::vector<std::string>;

const std::string kSet = std::string(DITTO_SOURCE_DIR) + "/tests/golden/energon/set";

// A copy of the set, to be damaged.
struct Copy {
  Copy() {
    std::string name = (fs::temp_directory_path() / "ditto_energon_XXXXXX").string();
    path = ::mkdtemp(name.data());
    fs::copy(kSet, path, fs::copy_options::recursive);
  }
  ~Copy() { fs::remove_all(path); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(path + "/" + name) << text; }
  std::string path;
};

std::shared_ptr<ditto::Source> open_set(const std::string& path, Options options = {}, SplitOf split = SplitOf::train) {
  options["path"] = path;
  return ditto::test::make_plugin<ditto::Source>("data", "webdataset", options, {.split = split, .folder = "/"});
}

std::string why_refused(const std::function<void()>& call, ErrorKind kind) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    return error.what();
  }
  FAIL("nothing was refused");
  return {};
}

bool says(const std::string& text, const std::string& part) {
  CAPTURE(text);
  CAPTURE(part);
  return text.find(part) != std::string::npos;
}

std::string caption_of(const ditto::Sample& sample) {
  const auto& bytes = sample.tensors.at("caption");
  return {reinterpret_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel())};
}

// Sample `number` of make_energon.py: where, caption, and its picture's first pixel.
void check_sample(const ditto::Sample& sample, int64_t number) {
  CAPTURE(number);
  const bool jpeg = number % 3 == 2;
  std::string digits = std::to_string(10000 + number).substr(1);
  CHECK(says(sample.place, "/" + digits + (jpeg ? ".jpg" : ".png")));
  const bool in_text = number == 3 || number == 9;
  CHECK(caption_of(sample) == (in_text ? "text " : "of number ") + std::to_string(number));
  const auto& image = sample.tensors.at("image");
  REQUIRE(image.sizes() == at::IntArrayRef({3, 4, 6}));
  CHECK(std::abs((image[0][0][0].item<float>() + 1) * 127.5f - static_cast<float>(10 * number)) < (jpeg ? 12 : 0.01));
}

}  // namespace

TEST_CASE("a set that Energon prepared is read as it is: split, braces, exclusions, field map") {
  const auto source = open_set(kSet);
  CHECK(source->size() == 11);
  const std::vector<int64_t> numbers{0, 1, 2, 3, 4, 8, 9, 10, 11, 12, 13};
  for (size_t i = 0; i < numbers.size(); ++i) check_sample(source->read(static_cast<int64_t>(i)), numbers[i]);
  CHECK(source->read(0).place == "part/shard_000.tar:folder.0/0000.png");
  CHECK_FALSE(ditto::find(source->makes(), "label"));
  CHECK(source->warnings().empty());

  const auto held_out = open_set(kSet, {}, SplitOf::validation);  // 5 to 7, without 7; 6 has a name of over 100 bytes
  CHECK(held_out->size() == 2);
  check_sample(held_out->read(0), 5);
  check_sample(held_out->read(1), 6);
}

TEST_CASE("the recipe chooses the parts, and may say more than the set does") {
  CHECK(open_set(kSet, {{"split", std::string("val")}})->size() == 2);
  CHECK(open_set(kSet, {}, SplitOf::validation)->size() == 2);
  CHECK(open_set(kSet, {{"validation_split", std::string("train")}}, SplitOf::validation)->size() ==
        open_set(kSet)->size());
  const auto labelled = open_set(kSet, {{"label", std::string("json[label]")}, {"classes", int64_t{4}}});
  for (int64_t i = 0; i < 5; ++i) CHECK(labelled->read(i).tensors.at("label").item<int64_t>() == i % 4);
  const auto other = open_set(kSet, {{"caption", std::string("txt")}});
  CHECK(caption_of(other->read(1)) == "text 1");
  CHECK(says(why_refused(
                 [] {
                   open_set(kSet, {{"split", std::string("dev")}});
                 },
                 ErrorKind::config),
             "it has: test, train, val"));
  CHECK(says(why_refused([] { open_set(kSet, {{"split", std::string("test")}}); }, ErrorKind::config), "has no shard"));
}

TEST_CASE("a set of several readers gives the same samples") {
  const auto source = open_set(kSet);
  ditto::LoaderOptions options;
  options.threads = 4;
  ditto::Loader loader(source, options, 3, {}), alone(source,
                                                      [] {
                                                        ditto::LoaderOptions none;
                                                        none.threads = 0;
                                                        return none;
                                                      }(),
                                                      3, {});
  for (int64_t place = 0; place < 44; place += 11) {
    const auto a = loader.next({place, 11}), b = alone.next({place, 11});
    CHECK(a.ids == b.ids);
    for (const char* name : {"image", "caption"}) CHECK(a.at(name).equal(b.at(name)));
  }
}

TEST_CASE("a shard without an index is indexed, to the same samples; one whose index does not fit is refused") {
  const Copy copy;
  const auto before = open_set(kSet);
  fs::remove(copy.path + "/part/shard_002.tar.idx");
  const auto after = open_set(copy.path);
  REQUIRE(after->size() == before->size());
  for (int64_t i = 0; i < after->size(); ++i) CHECK(after->read(i).place == before->read(i).place);
  REQUIRE(after->warnings().size() == 1);
  CHECK(says(after->warnings().front(), "1 of 2 shards have no index"));

  fs::copy(copy.path + "/part/shard_001.tar.idx", copy.path + "/part/shard_002.tar.idx");
  CHECK(says(why_refused([&] { open_set(copy.path); }, ErrorKind::data), "has 3 samples, and .info counts 6"));
  fs::remove(copy.path + "/part/shard_000.tar");
  CHECK(says(why_refused([&] { open_set(copy.path); }, ErrorKind::data), "is a shard of the set, and is not there"));
}

TEST_CASE("an index that points elsewhere costs the samples it spoils, each of them named") {
  const Copy copy;
  {
    std::fstream index(copy.path + "/part/shard_000.tar.idx", std::ios::in | std::ios::out | std::ios::binary);
    const std::uint64_t wrong = 999'999'999'488;
    index.seekp(8 * 2);
    index.write(reinterpret_cast<const char*>(&wrong), 8);
  }
  const auto source = open_set(copy.path);
  CHECK(says(why_refused([&] { source->read(1); }, ErrorKind::data), "part/shard_000.tar: sample 1"));
  CHECK(says(why_refused([&] { source->read(2); }, ErrorKind::data), "lies at bytes 999999999488"));
  check_sample(source->read(3), 3);
}

TEST_CASE("what only Python makes is refused by name, unless the recipe says where it stands") {
  const Copy copy;
  const auto refusal = [&](const std::string& text) {
    copy.write(".nv-meta/dataset.yaml", text);
    return why_refused([&] { open_set(copy.path); }, ErrorKind::config);
  };
  const std::string type = "sample_type:\n  __module__: megatron.energon\n  __class__: CaptioningSample\n";
  CHECK(
      says(refusal(type + "sample_loader: sample_loader.py:sample_loader\npart_filter: sample_loader.py:part_filter\n"),
           "the Python function sample_loader.py:sample_loader"));
  CHECK(says(refusal("__module__: megatron.energon\n__class__: CrudeWebdataset\n"), "a cooker in Python makes"));
  CHECK(open_set(copy.path, {{"image", Strings{"png", "jpg"}}, {"label", std::string("none")}})->size() == 11);
  CHECK(says(refusal("sample_type:\n  __module__: my.lab\n  __class__: Sample\nfield_map: {image: png}\n"),
             "the Python class my.lab.Sample"));
  CHECK(says(refusal("sample_type:\n  __module__: megatron.energon\n  __class__: TextSample\nfield_map: {text: txt}\n"),
             "have no picture in their field_map"));
  copy.write(
      ".nv-meta/dataset.yaml",
      "__module__: megatron.energon\n__class__: CaptioningWebdataset\nfield_map: {image: 'png,jpg', caption: txt}\n");
  CHECK(open_set(copy.path)->size() == 11);  // as Energon wrote it before its version 5
  fs::remove(copy.path + "/.nv-meta/.info.json");
  copy.write(".nv-meta/.info.yaml",
             "shard_counts: {part/shard_000.tar: 5, part/shard_001.tar: 3, part/shard_002.tar: 6}\n");
  CHECK(open_set(copy.path)->size() == 11);
  fs::remove_all(copy.path + "/.nv-meta");
  CHECK(says(why_refused([&] { open_set(copy.path); }, ErrorKind::config), "dataset.yaml: is not there"));
}

TEST_CASE("names in braces are those that shells and Energon make of them") {
  const Copy copy;
  const auto shards = [&](const std::string& pattern) -> int64_t {
    return ditto::test::make_plugin<ditto::Source>(
               "data", "webdataset",
               {{"shards", Strings{pattern}}, {"label", std::string("none")}, {"size", std::vector<int64_t>{4, 6}}},
               {.split = SplitOf::train, .folder = copy.path})
        ->size();
  };
  for (const char* all : {"part/shard_{000..002}.tar", "part/shard_00{0,1,2}.tar", "part/{x,shard_00{2..0..1}}.tar",
                          "part/shard_{000,{001..002}}.tar"}) {
    CAPTURE(all);
    CHECK(shards(all) == 14);
  }
  CHECK(shards("part/shard_00{0..2..2}.tar") == 11);
  CHECK(says(why_refused([&] { shards("part/{a..c}{0..9}.tar"); }, ErrorKind::config), "no file matches"));
  CHECK(says(why_refused([&] { shards("{0..9999999}.tar"); }, ErrorKind::data), "more than a million names"));
  CHECK(says(why_refused([&] { shards("{0..9999}{0..9999}.tar"); }, ErrorKind::data), "more than a million names"));
}

TEST_CASE("YAML becomes the tree that JSON has; what is none, or grows too large, is refused with its place") {
  const auto yaml = [](const std::string& text) { return ditto::formats::parse_yaml(text, "x.yaml", ErrorKind::data); };
  CHECK(yaml("a: [1, 2.5, true, ~, \"3\", x y]\nb: {c: {}}\n") ==
        nlohmann::json::parse(R"({"a": [1, 2.5, true, null, "3", "x y"], "b": {"c": {}}})"));
  CHECK(yaml("[True, FALSE, Null, \"True\"]") == nlohmann::json::parse(R"([true, false, null, "True"])"));
  CHECK(yaml("").is_null());
  std::map<std::string, int> lines;
  const auto numbered =
      ditto::formats::parse_yaml("a: 1\n\nb:\n  c: {d: [1,\n   2]}\n", "x.yaml", ErrorKind::data, lines);
  CHECK(numbered == yaml("{a: 1, b: {c: {d: [1, 2]}}}"));
  CHECK(lines == std::map<std::string, int>{{"a", 1}, {"b", 3}, {"b.c", 4}, {"b.c.d", 4}});
  const auto refusal = [&](const std::string& text) { return why_refused([&] { yaml(text); }, ErrorKind::data); };
  CHECK(says(refusal("a: 1\na: 2\n"), "x.yaml: the key 'a' is there twice"));
  CHECK(says(refusal("a: [1\n"), "this is not YAML: line "));
  CHECK(says(refusal("a: \xff\n"), "not UTF-8"));
  CHECK(says(refusal("&a [*a]"), "x.yaml: this"));
  std::string bomb = "- &a0 [x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 9; ++i) {
    const std::string before = "*a" + std::to_string(i - 1);
    bomb += "- &a" + std::to_string(i) + " [" + before;
    for (int k = 1; k < 9; ++k) bomb += ", " + before;
    bomb += "]\n";
  }
  CHECK(says(refusal(bomb), "more than 1000000 values"));
  CHECK(says(refusal(std::string(100000, '[')), "x.yaml: this"));
}
