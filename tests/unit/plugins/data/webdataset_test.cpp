// The plugins of kind data and encoder, opened as the host opens them: by their entry function.
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <torch/types.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <ditto/data.h>
#include <ditto/encoder.h>
#include <ditto/error.h>
#include <ditto/math/pictures.h>

#include "core/data/loader.h"
#include "core/formats/archive/tar.h"
#include "core/formats/picture/picture.h"
#include "core/formats/picture/picture_resize.h"
#include "tests/support/files.h"
#include "tests/support/videos.h"

namespace {

namespace fs = std::filesystem;
namespace formats = ditto::formats;
using ditto::Error;
using ditto::ErrorKind;
using ditto::GivenOption;
using ditto::OptionValue;
using ditto::SplitOf;
using Strings = std::vector<std::string>;

struct Folder {
  Folder() {
    std::string name = (fs::temp_directory_path() / "ditto_data_XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path); }
  std::string path;
};

template <class Interface>
std::shared_ptr<Interface> open(const std::string& library, std::map<std::string, OptionValue> options,
                                const typename Interface::Needs& needs) {
  const std::string path = ditto::test::plugin_folder() + "/" + library;
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  REQUIRE_MESSAGE(handle, ::dlerror());
  auto* entry = reinterpret_cast<const void* (*)()>(::dlsym(handle, ditto::kEntryName));
  REQUIRE((entry != nullptr));
  ditto::OptionMap given{"data", "test.toml:1:1", {}};
  for (auto& [name, value] : options) given.given[name] = GivenOption{value, "test.toml:2:1"};
  ditto::OptionReader reader(given);
  return static_cast<const ditto::Factory<Interface>*>(entry())->make(reader, needs);
}

std::shared_ptr<ditto::Source> webdataset(const Folder& folder, std::map<std::string, OptionValue> options) {
  options.emplace("shards", Strings{"*.tar"});
  options.emplace("channels", int64_t{1});
  if (!options.count("label")) options.emplace("classes", int64_t{10});
  return open<ditto::Source>("data/libwebdataset.so", std::move(options),
                             {.split = SplitOf::train, .folder = folder.path});
}

std::vector<std::byte> grey_png(int height, int width, int value) {
  formats::Picture picture{width, height, 1, {}};
  for (int i = 0; i < height * width; ++i) picture.pixels.push_back(static_cast<std::uint8_t>(value + i));
  return formats::encode_png(picture);
}

std::string number(int i) { return std::to_string(100000 + i).substr(1); }

// Four 2 x 3 pictures whose first pixel is 10 i, with label i.
void write_shard(const std::string& path, int first = 0) {
  formats::TarWriter tar(path);
  for (int i = first; i < first + 4; ++i) {
    tar.add(number(i) + ".png", grey_png(2, 3, 10 * i));
    tar.add(number(i) + ".cls", std::to_string(i) + "\n");
  }
  tar.finish();
}

std::string error_of(const std::function<void()>& call, ErrorKind kind) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    return error.what();
  }
  FAIL("no Error was thrown");
  return {};
}

bool holds(const std::string& text, const std::string& part) {
  CAPTURE(text);
  CAPTURE(part);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("samples of several shards come by index, pictures in -1 to 1") {
  const Folder folder;
  write_shard(folder.path + "/a-1.tar", 4);
  write_shard(folder.path + "/a-0.tar", 0);
  const auto source = webdataset(folder, {});
  CHECK(source->size() == 8);
  CHECK(find(source->makes(), "label")->values == 10);
  CHECK(source->warnings().empty());
  CHECK(source->makes()[0].shape == std::vector<int64_t>{1, 2, 3});
  for (int64_t i = 7; i >= 0; --i) {
    const auto sample = source->read(i);
    CHECK(sample.tensors.at("label").item<int64_t>() == i);
    CHECK(sample.tensors.at("image").sizes() == at::IntArrayRef{1, 2, 3});
    CHECK(sample.tensors.at("image")[0][1][2].item<float>() == doctest::Approx((10.0 * i + 5) / 127.5 - 1));
    CHECK(sample.place == "a-" + std::to_string(i / 4) + ".tar:" + number(static_cast<int>(i)) + ".png");
  }
}

TEST_CASE("members that are video files give their frames, by the host's decoder") {
  if (!ditto::test::video_decoder()) return;
  const Folder folder;
  {
    formats::TarWriter tar(folder.path + "/a.tar");
    const auto add = [&](int i, const std::string& bytes) {
      tar.add(number(i) + ".mp4", ditto::test::as_bytes(bytes));
      tar.add(number(i) + ".cls", ditto::test::as_bytes(std::to_string(i)));
    };
    const auto whole = ditto::test::read_text(ditto::test::golden_video("h264.mp4"));
    add(0, whole);
    add(1, whole.substr(0, 700));
    add(2, whole);
    tar.finish();
  }
  const std::map<std::string, OptionValue> options{{"shards", Strings{"*.tar"}}, {"image", Strings{"mp4"}},
                                                   {"frames", int64_t{3}},       {"interval", int64_t{7}},
                                                   {"first", int64_t{2}},        {"classes", int64_t{10}}};
  ditto::Source::Needs needs{.split = SplitOf::train, .folder = folder.path};
  needs.decoder = [](const std::string&) { return ditto::test::video_decoder(); };
  const auto source = open<ditto::Source>("data/libwebdataset.so", options, needs);
  CHECK(source->makes()[0].shape == std::vector<int64_t>{3, 3, 24, 32});  // as the first is
  for (const int64_t index : {0, 2}) {
    const auto sample = source->read(index);
    CHECK(sample.tensors.at("label").item<int64_t>() == index);
    const auto image = sample.tensors.at("image");
    CHECK(source->info(index).at("image") == image.sizes().vec());
    const auto bytes = ditto::test::read_text(ditto::test::golden_video("h264.mp4"));
    const auto video = ditto::test::open_video(*ditto::test::video_decoder(), bytes, "h264.mp4");
    for (int64_t i = 0; i < 3; ++i)
      CHECK(image.select(1, i).equal(
          ditto::image_of_pixels(ditto::test::pixels_of(*video, {2 + 7 * i, 1, 1}), 24, 32, 3)));
  }
  CHECK(holds(error_of([&] { source->read(1); }, ErrorKind::data), "a.tar:00001.mp4: "));
  auto sized = options;
  sized["size"] = std::vector<int64_t>{8, 8};
  sized["resize"] = "bicubic";
  sized["channels"] = int64_t{1};
  CHECK(open<ditto::Source>("data/libwebdataset.so", sized, needs)->read(0).tensors.at("image").sizes() ==
        at::IntArrayRef{1, 3, 8, 8});
  auto uncounted = options;
  uncounted.erase("frames");
  CHECK(holds(error_of([&] { open<ditto::Source>("data/libwebdataset.so", uncounted, needs); }, ErrorKind::config),
              "data.frames: is 0, and data.image names video files"));
  uncounted["image"] = Strings{"png", "mp4"};
  CHECK(holds(error_of([&] { open<ditto::Source>("data/libwebdataset.so", uncounted, needs); }, ErrorKind::config),
              "names videos beside others"));
  needs.decoder = {};
  CHECK(holds(error_of([&] { open<ditto::Source>("data/libwebdataset.so", options, needs); }, ErrorKind::plugin),
              "has no decoders to give"));
}

TEST_CASE("the fingerprint follows the content") {
  const Folder folder;
  write_shard(folder.path + "/a.tar");
  const auto before = webdataset(folder, {})->fingerprint();
  CHECK(webdataset(folder, {})->fingerprint() == before);
  CHECK(webdataset(folder, {{"channels", int64_t{3}}})->fingerprint() != before);
  write_shard(folder.path + "/b.tar", 4);
  CHECK(webdataset(folder, {})->fingerprint() != before);
}

TEST_CASE("the fingerprint sees other pictures of the same names and sizes") {
  const auto shard = [](const std::string& path, char letter, size_t bytes, int other = -1, int relabelled = -1) {
    formats::TarWriter writer(path);
    for (int i = 0; i < 8; ++i) {
      writer.add(std::to_string(i) + ".png", std::string(bytes, i == other ? '?' : letter));
      writer.add(std::to_string(i) + ".cls", i == relabelled ? "2" : "1");
    }
    writer.finish();
  };
  const auto fingerprint = [](const Folder& folder) {
    return webdataset(folder, {{"size", std::vector<int64_t>{2, 2}}})->fingerprint();
  };
  for (const size_t bytes : {size_t{100}, size_t{1} << 20}) {  // in all, and in parts
    const Folder folder;
    shard(folder.path + "/a.tar", 'x', bytes);
    shard(folder.path + "/b.tar", 'x', bytes);
    const auto before = fingerprint(folder), names = before.substr(0, before.find(", contents "));
    CHECK(names.starts_with("16 samples, "));
    const auto time = fs::last_write_time(folder.path + "/b.tar");
    shard(folder.path + "/b.tar", 'y', bytes);
    fs::last_write_time(folder.path + "/b.tar", time);
    CHECK(fingerprint(folder) != before);
    CHECK(fingerprint(folder).starts_with(names + ", "));  // all that 0.1.0 saw is equal
    shard(folder.path + "/b.tar", 'x', bytes, 3);          // one of eight
    CHECK(fingerprint(folder) != before);
    shard(folder.path + "/b.tar", 'x', bytes, -1, 5);  // one label
    CHECK(fingerprint(folder) != before);
    shard(folder.path + "/b.tar", 'x', bytes);
    CHECK(fingerprint(folder) == before);
  }
}

TEST_CASE("captions and labels are read from text and from JSON") {
  const Folder folder;
  {
    formats::TarWriter tar(folder.path + "/a.tar");
    tar.add("x.y/one.png", grey_png(2, 2, 0));
    tar.add("x.y/one.txt", "a cat");
    tar.add("x.y/one.json", R"({"class": 3, "text": "ein Kätzchen", "bad": "3"})");
    tar.finish();
  }
  const auto text_of = [](const torch::Tensor& t) {
    return std::string(static_cast<const char*>(t.const_data_ptr()), t.nbytes());
  };
  std::map<std::string, OptionValue> options{{"label", "json:class"}, {"classes", int64_t{4}}, {"caption", "txt"}};
  auto sample = webdataset(folder, options)->read(0);
  CHECK(sample.place == "a.tar:x.y/one.png");
  CHECK(sample.tensors.at("label").item<int64_t>() == 3);
  CHECK(text_of(sample.tensors.at("caption")) == "a cat");
  options["caption"] = "json:text";
  CHECK(text_of(webdataset(folder, options)->read(0).tensors.at("caption")) == "ein Kätzchen");
  options["label"] = "json:bad";
  CHECK(holds(error_of([&] { webdataset(folder, options)->read(0); }, ErrorKind::data), "field \"bad\" is \"3\""));
  options["label"] = "json:class";
  options["classes"] = int64_t{3};
  CHECK(holds(error_of([&] { webdataset(folder, options); }, ErrorKind::config), "a.tar:x.y/one.json is 3"));
}

TEST_CASE("pictures are cropped at the centre and resized, or refused where sizes differ") {
  const Folder folder;
  {
    formats::TarWriter tar(folder.path + "/a.tar");
    formats::Picture wide{8, 4, 1, {}};  // columns of 0 0 255 255 255 255 0 0
    for (int i = 0; i < 32; ++i) wide.pixels.push_back(i % 8 >= 2 && i % 8 < 6 ? 255 : 0);
    tar.add("0.png", grey_png(2, 2, 7));
    tar.add("1.png", formats::encode_png(wide));
    tar.finish();
  }
  const auto resized = webdataset(folder, {{"label", "none"}, {"size", std::vector<int64_t>{2, 2}}})->read(1);
  CHECK(resized.tensors.at("image").equal(torch::ones({1, 2, 2})));
  const auto colour =
      webdataset(folder, {{"label", "none"}, {"size", std::vector<int64_t>{4, 4}}, {"channels", int64_t{3}}});
  CHECK(colour->read(1).tensors.at("image").equal(torch::ones({3, 4, 4})));
  const auto plain = webdataset(folder, {{"label", "none"}});
  CHECK_NOTHROW(plain->read(0));
  CHECK(holds(error_of([&] { plain->read(1); }, ErrorKind::data), "a.tar:1.png: the picture is 4 x 8"));
}

TEST_CASE("pictures are made to cover a size as ADM's crop does, and are other data then") {
  const Folder folder;
  {
    formats::TarWriter tar(folder.path + "/a.tar");
    tar.add("0.png", grey_png(24, 40, 1));
    tar.finish();
  }
  const std::map<std::string, OptionValue> options{{"label", "none"}, {"size", std::vector<int64_t>{8, 8}}};
  auto covering = options;
  covering["resize"] = "bicubic";
  const auto plain = webdataset(folder, options), covered = webdataset(folder, covering);
  const auto expected = formats::cover(formats::decode_picture(grey_png(24, 40, 1), "x"), 8, 8);
  const auto image = covered->read(0).tensors.at("image");
  CHECK(image.sizes() == at::IntArrayRef({1, 8, 8}));
  for (int64_t i = 0; i < 64; ++i)
    CHECK(image.view({-1})[i].item<float>() ==
          static_cast<float>(expected.pixels[static_cast<std::size_t>(i)]) / 127.5f - 1.0f);
  CHECK(plain->fingerprint() != covered->fingerprint());
}

TEST_CASE("classes and their names come from classes.json, where the recipe says neither") {
  const Folder folder;
  write_shard(folder.path + "/a.tar");
  const auto label_of = [](const ditto::Source& source) {
    for (const auto& spec : source.makes())
      if (spec.name == "label") return spec;
    return ditto::TensorSpec{};
  };
  std::ofstream(folder.path + "/classes.json") << "[\"ant\", \"bee\", \"cat\", \"dog\"]";
  const auto told = label_of(*webdataset(folder, {{"label", "cls"}}));
  CHECK(told.values == 4);
  CHECK(told.names == Strings{"ant", "bee", "cat", "dog"});
  const auto said = label_of(*webdataset(folder, {{"classes", int64_t{7}}}));
  CHECK(said.values == 7);
  CHECK(said.names.empty());
  std::ofstream(folder.path + "/classes.json") << "{}";
  CHECK(holds(error_of([&] { webdataset(folder, {{"label", "cls"}}); }, ErrorKind::data), "is no list of names"));
}

TEST_CASE("a picture without a label is refused when the data is opened, by shard and member") {
  const Folder folder;
  {
    formats::TarWriter tar(folder.path + "/a.tar");
    tar.add("0.png", grey_png(2, 2, 7));
    tar.add("0.cls", "1");
    tar.add("1.png", grey_png(2, 2, 7));
    tar.finish();
  }
  const auto message = error_of([&] { webdataset(folder, {}); }, ErrorKind::data);
  CHECK(holds(message, "a.tar:1.png: this picture has no member \"1.cls\""));
  CHECK(webdataset(folder, {{"label", "none"}})->size() == 2);
}

TEST_CASE("labels that data.classes does not reach are refused when the data is opened, with how many and how large") {
  const Folder folder;
  write_shard(folder.path + "/a-0.tar", 0);
  write_shard(folder.path + "/a-1.tar", 4);
  CHECK(webdataset(folder, {{"classes", int64_t{8}}})->size() == 8);
  const auto message = error_of([&] { webdataset(folder, {{"classes", int64_t{3}}}); }, ErrorKind::config);
  for (const char* part :
       {"data.classes: is 3", "labels 0 to 2", "5 of 8 labels are larger, up to 7", "a-0.tar:00003.cls is 3"})
    CHECK(holds(message, part));
  CHECK(webdataset(folder, {{"label", "none"}})->size() == 8);
}

TEST_CASE("labels that are no numbers are named when their sample is read") {
  const Folder folder;
  {
    formats::TarWriter tar(folder.path + "/a.tar");
    for (const auto& [key, label] : {std::pair{"0", "seven"}, {"1", "1.5"}, {"2", "-1"}, {"3", ""}, {"4", " 9\n"}}) {
      tar.add(std::string(key) + ".png", grey_png(2, 2, 7));
      tar.add(std::string(key) + ".cls", label);
    }
    tar.finish();
  }
  const auto source = webdataset(folder, {});
  CHECK(holds(error_of([&] { source->read(0); }, ErrorKind::data), "a.tar:0.cls: the label is \"seven\""));
  CHECK(holds(error_of([&] { source->read(1); }, ErrorKind::data), "a.tar:1.cls"));
  CHECK(holds(error_of([&] { source->read(2); }, ErrorKind::data), "a.tar:2.cls"));
  CHECK(holds(error_of([&] { source->read(3); }, ErrorKind::data), "a.tar:3.cls"));
  CHECK(source->read(4).tensors.at("label").item<int64_t>() == 9);
}

TEST_CASE("a picture that does not decode is named, counted and left out by the loader") {
  const Folder folder;
  {
    formats::TarWriter tar(folder.path + "/a.tar");
    for (int i = 0; i < 4; ++i) {
      auto png = grey_png(2, 2, 7);
      if (i == 2) png.resize(png.size() / 2);
      tar.add(number(i) + ".png", png);
      tar.add(number(i) + ".cls", "1");
    }
    tar.finish();
  }
  const auto source = webdataset(folder, {});
  CHECK(holds(error_of([&] { source->read(2); }, ErrorKind::data), "a.tar:00002.png"));
  ditto::LoaderOptions options;
  options.shuffle = false;
  ditto::Loader loader(source, options, 1, {});
  CHECK(loader.next({0, 4}).weights == std::vector<double>{1, 1, 0, 1});
  options.strict = true;
  ditto::Loader strict(source, options, 1, {});
  CHECK(holds(error_of([&] { strict.next({0, 4}); }, ErrorKind::data), "a.tar:00002.png"));
}

TEST_CASE("a shard that was cut off anywhere keeps its whole samples, or ends the run with strict") {
  const Folder folder;
  const std::string path = folder.path + "/a.tar";
  write_shard(path);
  const auto whole = fs::file_size(path);
  std::string bytes(whole, '\0');
  std::ifstream(path, std::ios::binary).read(bytes.data(), static_cast<std::streamsize>(whole));
  int damaged = 0;
  for (std::uintmax_t size = 2048; size < 8192; size += 256) {  // each sample takes 2048 bytes
    std::ofstream(path, std::ios::binary | std::ios::trunc).write(bytes.data(), static_cast<std::streamsize>(size));
    const auto source = webdataset(folder, {});
    CAPTURE(size);
    CHECK(source->size() >= static_cast<int64_t>(size / 2048));
    CHECK(source->size() <= static_cast<int64_t>(size / 2048) + 1);
    for (int64_t i = 0; i < source->size(); ++i) CHECK(source->read(i).tensors.at("label").item<int64_t>() == i);
    REQUIRE(source->warnings().size() == 1);
    CHECK(holds(source->warnings()[0], path));
    CHECK(holds(source->warnings()[0], std::to_string(source->size()) + " samples before it kept"));
    ditto::LoaderOptions strict;
    strict.strict = true;
    CHECK(holds(error_of([&] { ditto::Loader(source, strict, 1, {}); }, ErrorKind::data), path));
    ++damaged;
  }
  CHECK(damaged == 24);
  std::ofstream(path, std::ios::binary | std::ios::trunc).write(bytes.data(), 600);
  CHECK(holds(error_of([&] { webdataset(folder, {}); }, ErrorKind::data), "holds a whole sample"));
}

TEST_CASE("a file that is no tar, and shards that are not there, are refused by name") {
  const Folder folder;
  std::ofstream(folder.path + "/a.tar") << std::string(5000, 'x');
  CHECK(holds(error_of([&] { webdataset(folder, {}); }, ErrorKind::data), folder.path + "/a.tar"));
  CHECK(holds(error_of([&] { webdataset(folder, {{"shards", Strings{"b-*.tar"}}}); }, ErrorKind::config), "b-*.tar"));
  CHECK(holds(error_of([&] { webdataset(folder, {{"shards", Strings{}}}); }, ErrorKind::config), "data.shards"));
  CHECK(holds(error_of(
                  [&] {
                    webdataset(folder, {{"shards", Strings{"a.tar", "*.tar"}}});
                  },
                  ErrorKind::config),
              "twice"));
}

TEST_CASE("the digits of the repository are whole") {
  const auto digits = [](SplitOf split) {
    return open<ditto::Source>("data/libwebdataset.so",
                               {{"shards", Strings{"train-*.tar"}},
                                {"validation_shards", Strings{"validation-*.tar"}},
                                {"classes", int64_t{10}},
                                {"channels", int64_t{1}}},
                               {split, std::string(DITTO_SOURCE_DIR) + "/data/digits"});
  };
  const auto train = digits(SplitOf::train), validation = digits(SplitOf::validation);
  CHECK(train->size() == 1621);
  CHECK(validation->size() == 176);
  std::vector<int64_t> count(10);
  for (const auto& source : {train, validation}) {
    CHECK(source->warnings().empty());
    for (int64_t i = 0; i < source->size(); ++i) {
      const auto sample = source->read(i);
      ++count[static_cast<size_t>(sample.tensors.at("label").item<int64_t>())];
      const auto sixteenths = (sample.tensors.at("image") + 1) * 8;
      CHECK((sixteenths - sixteenths.round()).abs().max().item<double>() < 0.04);
    }
  }
  CHECK(count == std::vector<int64_t>{178, 182, 177, 183, 181, 182, 181, 179, 174, 180});  // as scikit-learn's digits
}

TEST_CASE("synthetic samples depend on their number, part and seed alone") {
  for (const char* content : {"shapes", "clusters", "noise"}) {
    CAPTURE(content);
    const auto make = [&](int64_t seed, SplitOf split) {
      return open<ditto::Source>("data/libsynthetic.so", {{"content", content}, {"seed", seed}}, {split, "."});
    };
    const auto a = make(1, SplitOf::train), same = make(1, SplitOf::train), other = make(2, SplitOf::train),
               held_out = make(1, SplitOf::validation);
    const auto image = [](const auto& source, int64_t i) { return source->read(i).tensors.at("image"); };
    CHECK(a->fingerprint() == same->fingerprint());
    CHECK(a->fingerprint() != other->fingerprint());
    CHECK(image(a, 13).sizes() == at::IntArrayRef{3, 32, 32});
    CHECK(image(a, 13).equal(image(same, 13)));
    CHECK_FALSE(image(a, 13).equal(image(a, 23)));
    CHECK_FALSE(image(a, 13).equal(image(other, 13)));
    CHECK_FALSE(image(a, 13).equal(image(held_out, 13)));
    CHECK(a->read(13).tensors.at("label").item<int64_t>() == 3);
  }
}

TEST_CASE("synthetic clusters have the spread they are given, around one mean a class") {
  const auto source = open<ditto::Source>(
      "data/libsynthetic.so", {{"content", "clusters"}, {"spread", 0.1}, {"mean", 0.5}, {"classes", int64_t{2}}},
      {SplitOf::train, "."});
  std::vector<torch::Tensor> even;
  for (int64_t i = 0; i < 400; i += 2) even.push_back(source->read(i).tensors.at("image"));
  const auto all = torch::stack(even);
  CHECK(all.std(0).mean().item<double>() == doctest::Approx(0.1).epsilon(0.02));
  CHECK(all.mean(0).std().item<double>() == doctest::Approx(0.5).epsilon(0.05));
  CHECK((all.mean(0) - source->read(1).tensors.at("image")).abs().mean().item<double>() > 0.3);
}

TEST_CASE("synthetic shapes fill the range and differ by class") {
  const auto source = open<ditto::Source>("data/libsynthetic.so", {{"content", "shapes"}}, {SplitOf::train, "."});
  for (int64_t i = 0; i < 20; ++i) {
    const auto image = source->read(i).tensors.at("image");
    CHECK(image.min().item<double>() == -1);
    CHECK(image.max().item<double>() > 0.3);
    CHECK(image.max().item<double>() <= 1);
  }
}

TEST_CASE("the identity encoder renames, and refuses data without pictures") {
  const auto encoder =
      open<ditto::Encoder>("encoders/libidentity.so", {}, {{{"image", at::kFloat, {1, 8, 8}, "-1 … 1"}}});
  ditto::Batch batch;
  const auto image = torch::rand({2, 1, 8, 8});
  batch["image"] = image;
  ditto::Context ctx(std::make_shared<ditto::OpTable>(), ditto::Random(1));
  const auto encoded = encoder->encode(encoder->precompute(batch, ctx), ctx);
  CHECK(encoded.at("clean").equal(image));
  CHECK(encoder->decode(encoded.at("clean"), ctx).equal(image));
  CHECK(encoder->decoded({1, 8, 8}) == std::vector<int64_t>{1, 8, 8});
  CHECK(encoder->makes()[0].name == "clean");
  CHECK(encoder->makes()[0].shape == std::vector<int64_t>{1, 8, 8});
  CHECK(holds(error_of(
                  [] {
                    open<ditto::Encoder>("encoders/libidentity.so", {}, {{{"label", at::kLong, {}, ""}}});
                  },
                  ErrorKind::config),
              "no \"image\""));
}
