// Texts that people's editors made, and what lies beside pictures: captions wherever they are read, and files that are
// no pictures to learn from.
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include <doctest/doctest.h>

#include <ditto/data.h>

#include "core/dataset/inspect.h"
#include "core/dataset/prepare.h"
#include "core/formats/archive/shard.h"
#include "core/formats/archive/tar.h"
#include "core/formats/picture/picture.h"
#include "core/formats/tensor/safetensors.h"
#include "core/formats/text/table.h"
#include "core/formats/text/utf8.h"
#include "support/files.h"
#include "support/open_plugin.h"

namespace {

using ditto::ErrorKind;
using ditto::formats::plain_text;
using ditto::test::as_bytes;
using ditto::test::contains;
using ditto::test::TemporaryFolder;

constexpr const char* kMarked = "\xEF\xBB\xBF";
const std::string kUtf16(
    "\xFF\xFE"
    "d\0o\0g\0",
    8);
const std::string kUtf16Unmarked("d\0o\0g\0", 6);

void put_text(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

std::string small_png(int value) {
  const auto png =
      ditto::formats::encode_png({2, 2, 1, std::vector<std::uint8_t>(4, static_cast<std::uint8_t>(value))});
  return {reinterpret_cast<const char*>(png.data()), png.size()};
}

// Of every sample its file's name and its caption.
std::map<std::string, std::string> captions_of(const ditto::Prepared& made) {
  std::map<std::string, std::string> out;
  for (const auto& shard : made.shards) {
    const auto file = ditto::formats::RandomFile::open(shard);
    const auto text = [&](const ditto::formats::ShardMember* member) {
      if (member == nullptr) return std::string("none");
      const auto bytes = file->read(member->offset, member->size, "t");
      return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    };
    for (const auto& sample : ditto::formats::shard_samples(ditto::formats::index_tar(shard), "t")) {
      const auto notes = text(sample.find("json"));
      const auto begin = notes.find("\"file\":\"") + 8;
      out[notes.substr(begin, notes.find('"', begin) - begin)] = text(sample.find("txt"));
    }
  }
  return out;
}

std::string bytes_in(const ditto::Sample& sample) {
  const auto& caption = sample.tensors.at("caption");
  return {static_cast<const char*>(caption.const_data_ptr()), caption.nbytes()};
}

}  // namespace

TEST_CASE("a text is what was meant: no mark, plain line ends, nothing around it") {
  for (const std::string text :
       {"a kite\nof red",
        "\xEF\xBB\xBF"
        "a kite\nof red",
        "a kite\r\nof red\r\n", "a kite\rof red\r", "\n \t a kite\nof red \n\n", "\xEF\xBB\xBF\r\na kite\r\nof red"})
    CHECK(plain_text(text, "t") == "a kite\nof red");
  for (const std::string text : {"", "\xEF\xBB\xBF", " \r\n\t"}) CHECK(plain_text(text, "t").empty());
  CHECK(plain_text("a\xC2\xA0", "t") == "a\xC2\xA0");  // blanks that are letters stay
  CHECK(ditto::formats::with_plain_ends("a\r\rb\n\rc\r\n\n") == "a\n\nb\n\nc\n\n");
}

TEST_CASE("a text in another encoding is refused by its place and what it looks like") {
  const auto refused = [](const std::string& text) {
    return ditto::test::error_of(ErrorKind::data, [&] { plain_text(text, "a/b.txt"); });
  };
  CHECK(contains(refused(kUtf16), "a/b.txt: is no UTF-8: it begins as UTF-16 does"));
  CHECK(contains(refused(kUtf16Unmarked), "byte 1 is zero, as in UTF-16 without a mark"));
  CHECK(contains(refused("the dog\x92s ball"), "is no UTF-8 at byte 7; save it as UTF-8"));
}

TEST_CASE("captions are found by every name that programs give them, and each is said that is left") {
  const TemporaryFolder folder;
  const std::string in = folder / "in/";
  for (const char* name : {"a", "b", "c", "d", "e", "f", "v1.5", "both"}) put_text(in + name + ".png", small_png(1));
  put_text(in + "IMG.JPG", ditto::test::read_text(ditto::test::golden_format("rgb.jpg")));
  for (const char* name :
       {"a.TXT", "b.png.txt", "c.caption", "d.txt", "e.PNG.Caption", "IMG.jpg.txt", "v1.5.txt", "both.png.txt",
        "both.txt", "both.caption", "nobody.txt", "README.caption", "metadata.parquet"})
    put_text(in + name, name);
  const auto made = ditto::prepare_folder(folder / "in", {.out = folder / "out"});
  CHECK(captions_of(made) == std::map<std::string, std::string>{{"a.png", "a.TXT"},
                                                                {"b.png", "b.png.txt"},
                                                                {"c.png", "c.caption"},
                                                                {"d.png", "d.txt"},
                                                                {"e.png", "e.PNG.Caption"},
                                                                {"f.png", "none"},
                                                                {"IMG.JPG", "IMG.jpg.txt"},
                                                                {"v1.5.png", "v1.5.txt"},
                                                                {"both.png", "both.png.txt"}});
  REQUIRE(made.left_out.size() == 2);
  CHECK(contains(made.left_out[0], "tables of captions in a form that is not read"));
  CHECK(contains(made.left_out[0], "(1): metadata.parquet"));
  CHECK(contains(made.left_out[1], "texts that are no caption"));
  CHECK(contains(made.left_out[1], "(4): README.caption, both.caption, both.txt, nobody.txt"));
  CHECK(contains(ditto::test::read_text(folder / "out/report.jsonl"), "{\"file\":\"a.TXT\",\"outcome\":\"caption\"}"));
}

TEST_CASE("tables of captions are read whatever editor saved them, and CSV as JSON lines") {
  const std::vector<std::pair<std::string, std::string>> tables{
      {"metadata.jsonl",
       "{\"file_name\": \"a.png\", \"text\": \" a kite\\r\\n\"}\n{\"file_name\": \"b.png\", \"text\": \"a dog\"}\n"},
      {"Metadata.JSONL", std::string(kMarked) + "{\"file_name\": \"a.png\", \"text\": \"a "
                                                "kite\"}\r\n\r\n{\"file_name\": \"b.png\", \"text\": \"a dog\"}\r\n"},
      {"metadata.jsonl",
       "{\"file_name\": \"a.png\", \"text\": \"a kite\"}\r{\"file_name\": \"b.png\", \"text\": \"a dog\"}\r"},
      {"metadata.csv", "file_name,text\na.png,a kite\nb.png,\"a dog\n\"\n"},
      {"METADATA.csv", std::string(kMarked) + "caption;file_name\r\na kite;a.png\r\na dog;b.png\r\n"}};
  for (const auto& [name, text] : tables) {
    CAPTURE(text);
    const TemporaryFolder folder;
    for (const char* picture : {"in/a.png", "in/b.png"}) put_text(folder / picture, small_png(1));
    put_text(folder / "in/" + name, text);
    const auto made = ditto::prepare_folder(folder / "in", {.out = folder / "out"});
    CHECK(captions_of(made) == std::map<std::string, std::string>{{"a.png", "a kite"}, {"b.png", "a dog"}});
    CHECK(made.left_out.empty());
  }
  const TemporaryFolder folder;
  put_text(folder / "in/a.png", small_png(1));
  const auto refused = [&](const std::string& text) {
    put_text(folder / "in/metadata.csv", text);
    return ditto::test::error_of(ErrorKind::data,
                                 [&] { ditto::prepare_folder(folder / "in", {.out = folder / "out"}); });
  };
  CHECK(contains(refused("name,text\na.png,x\n"), "metadata.csv:2: names no picture"));
  CHECK(contains(refused("file_name,text\na.png\n"), "metadata.csv:2: has 1 fields"));
  CHECK(contains(refused("file_name,text\na.png,x\na.png,y\n"), "metadata.csv:3: is the second line about"));
}

TEST_CASE("raw camera files and thumbnails are left out by name, and their JPEG stays") {
  const auto all =
      ditto::formats::SafetensorsReader::open(DITTO_SOURCE_DIR "/tests/golden/containers/pictures.safetensors");
  const TemporaryFolder folder;
  put_text(folder / "in/IMG_1.png", small_png(1));
  std::size_t raw = 0, reduced = 0;
  const auto put = [&](const std::string& entry, const std::string& name) {
    const auto bytes = all.read(all.at(entry));
    put_text(folder / "in/" + name, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  };
  for (const auto& entry : all.entries()) {
    const bool is_raw = entry.name.starts_with("bad/raw/");
    if (!is_raw && !entry.name.starts_with("bad/reduced/")) continue;
    put(entry.name, is_raw ? "raw " + std::to_string(raw++) + ".tif" : "small " + std::to_string(reduced++) + ".jpg");
  }
  put("file/plain.webp", "IMG_2.webp");
  put("file/colours of 24.bmp", "IMG_3.NEF");  // by its bytes a picture, whatever its name
  put("file/orientation 1.tif", "IMG_4.ARW");  // by its name none, as it may be anything
  put_text(folder / "in/IMG_5.cr3", "ftypcrx, or whatever");
  const auto made = ditto::prepare_folder(folder / "in", {.out = folder / "out"});
  std::vector<std::string> taken;
  for (const auto& [name, caption] : captions_of(made)) taken.push_back(name);
  CHECK(taken == std::vector<std::string>{"IMG_1.png", "IMG_2.webp", "IMG_3.NEF"});
  REQUIRE(made.left_out.size() == 2);
  CHECK(contains(made.left_out[0], "raw camera files: what a sensor saw"));
  CHECK(contains(made.left_out[0], "(" + std::to_string(raw + 2) + "): IMG_4.ARW, IMG_5.cr3, raw 0.tif"));
  CHECK(contains(made.left_out[1], "reduced copies: "));
  CHECK(contains(made.left_out[1], "(3): small 0.jpg"));
  CHECK((raw >= 6 && reduced == 3));
}

TEST_CASE("captions and labels of shards and tables of other programs are as they were meant") {
  const TemporaryFolder folder;
  {
    ditto::formats::TarWriter tar(folder / "a.tar");
    int number = 0;
    for (const std::string& text : {std::string(kMarked) + "a kite\r\n", std::string("a kite\n"), std::string("a kite"),
                                    kUtf16, kUtf16Unmarked, std::string("caf\xE9")}) {
      const auto key = "000" + std::to_string(number++);
      tar.add(key + ".png", as_bytes(small_png(number)));
      tar.add(key + ".txt", as_bytes(text));
      tar.add(key + ".cls", as_bytes(std::string(kMarked) + std::to_string(number) + "\r\n"));
    }
    tar.finish();
  }
  const auto source =
      ditto::test::make_plugin<ditto::Source>("data", "webdataset",
                                              {{"shards", std::vector<std::string>{"a.tar"}},
                                               {"caption", "txt"},
                                               {"classes", int64_t{10}},
                                               {"channels", int64_t{1}}},
                                              {.split = ditto::SplitOf::train, .folder = folder.path().string()});
  for (int64_t i = 0; i < 3; ++i) {
    const auto sample = source->read(i);
    CHECK(bytes_in(sample) == "a kite");
    CHECK(sample.tensors.at("label").item<int64_t>() == i + 1);
  }
  for (int64_t i = 3; i < 6; ++i)
    CHECK(contains(ditto::test::error_of(ErrorKind::data, [&] { source->read(i); }),
                   "a.tar:000" + std::to_string(i) + ".txt: is no "));
  CHECK(ditto::inspect_shard(folder / "a.tar", ditto::Depth::whole).problems.size() == 3);

  put_text(folder / "p.png", small_png(1));
  put_text(folder / "t.csv", std::string(kMarked) + "path,text\r\np.png,\"\r\na kite\r\nof red \"\r\n");
  const auto table = ditto::test::make_plugin<ditto::Source>(
      "data", "table",
      {{"table", "t.csv"}, {"caption", "text"}, {"channels", int64_t{1}}, {"size", std::vector<int64_t>{2, 2}}},
      {.split = ditto::SplitOf::train, .folder = folder.path().string()});
  CHECK(bytes_in(table->read(0)) == "a kite\nof red");
  CHECK(table->info(0).at("caption") == std::vector<int64_t>{13});

  const auto numbers = ditto::formats::parse_number_table(std::string(kMarked) + "1,2\r\n3,4\r\n", "t");
  CHECK(numbers.columns.empty());
  CHECK(numbers.rows() == 2);
}
