// Damaged shards and pictures: no crash, no hang, every good sample kept, each bad one named.
//
// Claim (data): A shard cut off at 200 places, 40 malformed pictures, a shard that goes away: no crash, all good
// samples kept, each bad one named.
#include <doctest/doctest.h>
#include <torch/types.h>

#include <cstring>
#include <filesystem>

#include <ditto/data.h>
#include <ditto/error.h>

#include "core/data/loader.h"
#include "core/dataset/shard_writer.h"
#include "core/formats/archive/tar.h"
#include "core/formats/picture/picture.h"
#include "tests/support/files.h"
#include "tests/support/open_plugin.h"

namespace {

namespace fs = std::filesystem;
namespace formats = ditto::formats;
using ditto::Error;
using ditto::ErrorKind;
using ditto::test::contains;
using ditto::test::error_of;
using ditto::test::golden_format;
using ditto::test::read_text;
using ditto::test::TemporaryFolder;
using ditto::test::write_text;

std::shared_ptr<ditto::Source> open_shards(const TemporaryFolder& folder, bool labelled = true) {
  std::map<std::string, ditto::OptionValue> options{{"shards", std::vector<std::string>{"*.tar"}},
                                                    {"size", std::vector<int64_t>{4, 4}}};
  if (labelled)
    options["classes"] = int64_t{100};
  else
    options["label"] = "none";
  return ditto::test::make_plugin<ditto::Source>("data", "webdataset", options,
                                                 {.split = ditto::SplitOf::train, .folder = folder.path().string()});
}

std::vector<std::byte> picture(int value) {
  return formats::encode_png({5, 4, 1, std::vector<std::uint8_t>(20, static_cast<std::uint8_t>(value))});
}

void write_shard(const std::string& path, int samples) {
  formats::TarWriter tar(path);
  for (int i = 0; i < samples; ++i) {
    tar.add(std::to_string(100 + i) + ".png", picture(i));
    tar.add(std::to_string(100 + i) + ".cls", std::to_string(i));
  }
  tar.finish();
}

// A set with an index, of one shard; where each sample begins, and where the last one ends.
std::vector<std::uint64_t> prepare_set(const std::string& folder, int samples) {
  ditto::PrepareOptions options;
  options.out = folder;
  ditto::ShardWriter writer(options);
  for (int i = 0; i < samples; ++i) {
    const auto png = picture(i);
    const auto label = std::to_string(i);
    writer.add({{"png", png}, {"cls", std::as_bytes(std::span(label))}}, i);
  }
  writer.finish();
  const auto index = read_text(folder + "/train-000000.tar.idx");
  std::vector<std::uint64_t> starts(index.size() / sizeof(std::uint64_t));
  std::memcpy(starts.data(), index.data(), index.size());
  return starts;
}

std::shared_ptr<ditto::Source> open_set(const std::string& folder) {
  return ditto::test::make_plugin<ditto::Source>(
      "data", "webdataset", {{"path", folder}, {"classes", int64_t{100}}, {"size", std::vector<int64_t>{4, 4}}},
      {.split = ditto::SplitOf::train, .folder = "/"});
}

ditto::LoaderOptions in_order() {
  ditto::LoaderOptions options;
  options.shuffle = false;
  options.max_bad = 1000;
  return options;
}

// What is no picture, of one file that is: cut, emptied, of another kind, and with headers that lie.
std::vector<std::string> malformed(const std::string& good, const std::string& other) {
  std::vector<std::string> all{"",
                               good.substr(0, 1),
                               good.substr(0, 8),
                               good.substr(0, 20),
                               std::string(5000, '\0'),
                               other.substr(0, 12) + good.substr(12)};
  for (const size_t part : {1, 2, 3}) all.push_back(good.substr(0, good.size() * part / 4));
  all.push_back(good.substr(0, good.size() - 3));
  auto zeros = good;
  zeros.replace(good.size() / 2, good.size() / 4, good.size() / 4, '\0');
  if (good.starts_with("\x89PNG")) all.push_back(zeros);  // the others have no checksums
  return all;
}

}  // namespace

TEST_CASE("a shard that is cut off at 200 places keeps its whole samples, and says where it was cut") {
  const TemporaryFolder folder;
  write_shard(folder / "a.tar", 12);
  const auto whole = read_text(folder / "a.tar");
  for (size_t k = 0; k < 200; ++k) {
    const size_t size = 2048 + k * (whole.size() - 1024 - 2048) / 200;  // a sample has 2048 bytes, the end mark 1024
    write_text(folder / "a.tar", whole.substr(0, size));
    const auto source = open_shards(folder);
    const auto kept = source->size();
    CAPTURE(size);
    REQUIRE(kept >= std::min<int64_t>(static_cast<int64_t>(size / 2048), 12));
    REQUIRE(source->warnings().size() == 1);
    REQUIRE(contains(source->warnings()[0], folder / "a.tar"));
    ditto::Loader loader(source, in_order(), 1, {});
    const auto batch = loader.next({0, kept});
    REQUIRE(batch.weights == std::vector<double>(static_cast<size_t>(kept), 1.0));
    for (int64_t i = 0; i < kept; ++i) REQUIRE(batch.at("label")[i].item<int64_t>() == i);
  }
}

TEST_CASE("of malformed pictures each is named, and the good ones between them are kept") {
  const TemporaryFolder folder;
  const auto png = read_text(golden_format("rgb.png")), jpeg = read_text(golden_format("rgb.jpg")),
             webp = read_text(golden_format("rgb.webp")), avif = read_text(golden_format("rgb.avif"));
  std::vector<std::pair<std::string, std::string>> bad;
  for (const auto& one : malformed(png, jpeg)) bad.emplace_back("png", one);
  for (const auto& one : malformed(jpeg, webp)) bad.emplace_back("jpg", one);
  for (const auto& one : malformed(webp, png)) bad.emplace_back("webp", one);
  for (const auto& one : malformed(avif, jpeg)) bad.emplace_back("avif", one);
  auto huge = png;
  huge.replace(16, 8, std::string("\0\0\xEA\x60\0\0\xEA\x60", 8));  // 60,000 x 60,000
  bad.emplace_back("png", huge);
  for (const char* text : {"<svg xmlns='http://www.w3.org/2000/svg'/>", "GIF89a", "BM", "II*\0", "\xFF\xD8\xFF\xD9",
                           "RIFF\4\0\0\0WEBP", "%PDF-1.7", "plain text"})
    bad.emplace_back("png", text);
  REQUIRE(bad.size() >= 40);
  {
    formats::TarWriter tar(folder / "a.tar");
    for (size_t i = 0; i < bad.size(); ++i) {
      tar.add(std::to_string(1000 + 2 * i) + ".png", picture(static_cast<int>(i)));
      tar.add(std::to_string(1001 + 2 * i) + "." + bad[i].first, bad[i].second);
    }
    tar.finish();
  }
  const auto source = open_shards(folder, false);
  REQUIRE(source->size() == static_cast<int64_t>(2 * bad.size()));
  ditto::Loader loader(source, in_order(), 1, {});
  const auto batch = loader.next({0, source->size()});
  for (int64_t i = 0; i < source->size(); ++i) {
    CAPTURE(i);
    CHECK(batch.weights[static_cast<size_t>(i)] == (i % 2 == 0 ? 1.0 : 0.0));
    if (i % 2 == 0) continue;
    const auto message = error_of(ErrorKind::data, [&] { source->read(i); });
    CHECK(contains(message, "a.tar:" + std::to_string(1000 + i) + "." + bad[static_cast<size_t>(i / 2)].first));
  }
}

TEST_CASE("a shard that goes away or is cut while it is read costs its own samples alone") {
  const TemporaryFolder folder;
  for (const char* name : {"a.tar", "b.tar", "c.tar"}) write_shard(folder / name, 4);
  const auto source = open_shards(folder);
  ditto::Loader loader(source, in_order(), 1, {});
  CHECK(loader.next({0, 2}).weights == std::vector<double>{1, 1});
  fs::remove(folder / "a.tar");                 // open: its bytes stay
  fs::remove(folder / "b.tar");                 // not yet
  fs::resize_file(folder / "c.tar", 2048 * 2);  // its last two samples
  CHECK(loader.next({2, 10}).weights == std::vector<double>{1, 1, 0, 0, 0, 0, 1, 1, 0, 0});
  CHECK(contains(error_of(ErrorKind::data, [&] { source->read(5); }), folder / "b.tar"));
  CHECK(contains(error_of(ErrorKind::data, [&] { source->read(11); }), "c.tar:103.png"));
}

TEST_CASE(
    "an indexed shard that is cut off at 200 places keeps every whole sample in its place, and the others are named") {
  const TemporaryFolder folder;
  const auto path = folder / "set/train-000000.tar";
  const auto starts = prepare_set(folder / "set", 12);
  REQUIRE(starts.size() == 13);
  const auto whole = read_text(path);
  for (size_t k = 0; k < 200; ++k) {
    const size_t size = k * whole.size() / 200;
    write_text(path, whole.substr(0, size));
    const auto source = open_set(folder / "set");
    REQUIRE(source->size() == 12);
    ditto::Loader loader(source, in_order(), 1, {});
    const auto batch = loader.next({0, 12});
    CAPTURE(size);
    for (int64_t i = 0; i < 12; ++i) {
      const bool kept = starts[static_cast<size_t>(i) + 1] <= size;
      REQUIRE(batch.weights[static_cast<size_t>(i)] == (kept ? 1.0 : 0.0));
      if (kept) REQUIRE(batch.at("label")[i].item<int64_t>() == i);
    }
    if (starts[12] <= size) continue;  // only the end mark is cut
    const auto message = error_of(ErrorKind::data, [&] { source->read(11); });
    REQUIRE(contains(message, "train-000000.tar: sample 11"));
  }
}

TEST_CASE("an indexed shard that goes away while it is read costs what was not read of it") {
  const TemporaryFolder folder;
  prepare_set(folder / "set", 12);
  const auto before = open_set(folder / "set"), after = open_set(folder / "set");
  ditto::Loader opened(before, in_order(), 1, {}), unopened(after, in_order(), 1, {});
  CHECK(opened.next({0, 2}).weights == std::vector<double>{1, 1});
  fs::remove(folder / "set/train-000000.tar");
  CHECK(opened.next({2, 10}).weights == std::vector<double>(10, 1.0));  // open: its bytes stay
  CHECK(unopened.next({0, 12}).weights == std::vector<double>(12, 0.0));
  CHECK(contains(error_of(ErrorKind::data, [&] { after->read(5); }), folder / "set/train-000000.tar"));
}
