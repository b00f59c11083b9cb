#include "core/dataset/prepare.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>

#include <ditto/error.h>

#include "core/dataset/inspect.h"
#include "core/formats/archive/shard.h"
#include "core/formats/picture/picture.h"
#include "core/formats/text/table.h"

namespace {

namespace fs = std::filesystem;
namespace formats = ditto::formats;
using ditto::Depth;
using ditto::Error;
using ditto::ErrorKind;

struct Folder {
  Folder() {
    std::string name = (fs::temp_directory_path() / "ditto_prepare_XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path); }
  std::string path;
};

std::string contents(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

void write(const std::string& path, const std::string& text) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

void write_picture(const std::string& path, int value) {
  fs::create_directories(fs::path(path).parent_path());
  formats::write_png(path, {2, 2, 1, std::vector<std::uint8_t>(4, static_cast<std::uint8_t>(value))});
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

std::string table_of(int rows) {
  std::string text;
  for (int i = 0; i < rows; ++i) text += std::to_string(i % 17) + ",0,16,8," + std::to_string(i % 10) + "\n";
  return text;
}

const ditto::TableLayout kSmall{.height = 2, .width = 2, .largest = 16};

std::vector<ditto::ShardReport> look(const ditto::Prepared& made) {
  std::vector<ditto::ShardReport> out;
  for (const auto& shard : made.shards) out.push_back(ditto::inspect_shard(shard, Depth::whole));
  return out;
}

}  // namespace

TEST_CASE("a table becomes shards of at most so many samples, a share of every class held out") {
  const Folder folder;
  write(folder.path + "/t.csv", table_of(205));
  const auto made = ditto::prepare_table(folder.path + "/t.csv", kSmall,
                                         {.out = folder.path + "/out", .shard_samples = 80, .validation = 0.1});
  CHECK(made.train == 185);
  CHECK(made.validation == 20);
  REQUIRE(made.shards.size() == 4);
  const auto reports = look(made);
  CHECK(reports[0].samples == 80);
  CHECK(reports[1].samples == 80);
  CHECK(reports[2].samples == 25);
  CHECK(reports[3].samples == 20);
  CHECK(reports[3].path == folder.path + "/out/validation-000000.tar");
  for (const auto& report : reports) CHECK(report.problems.empty());
  CHECK(reports[0].sizes == std::map<std::string, std::int64_t>{{"2 x 2 x 1", 80}});
  CHECK(reports[3].labels.size() == 10);
  for (const auto& [label, count] : reports[3].labels) CHECK(count == 2);
}

TEST_CASE("a row's values are the picture's, black at 0 and white at the largest") {
  const Folder folder;
  write(folder.path + "/t.csv", "label;a;b;c;d\n7;0;16;8;1\n");
  auto layout = kSmall;
  layout.label = "label";
  const auto made = ditto::prepare_table(folder.path + "/t.csv", layout, {.out = folder.path + "/out"});
  const auto samples = formats::shard_samples(formats::index_tar(made.shards[0]), "t");
  const auto file = formats::RandomFile::open(made.shards[0]);
  const auto* member = samples.at(0).find("png");
  const auto picture = formats::decode_picture(file->read(member->offset, member->size, "t"), "t");
  CHECK(picture.pixels == std::vector<std::uint8_t>{0, 255, 128, 16});
  CHECK(look(made)[0].labels.count(7) == 1);
}

TEST_CASE("the same input gives the same bytes") {
  const Folder folder;
  write(folder.path + "/t.csv", table_of(20));
  const auto a = ditto::prepare_table(folder.path + "/t.csv", kSmall, {.out = folder.path + "/a"});
  const auto b = ditto::prepare_table(folder.path + "/t.csv", kSmall, {.out = folder.path + "/b"});
  CHECK(contents(a.shards[0]) == contents(b.shards[0]));
}

TEST_CASE("tables that cannot be pictures are refused with their place") {
  const Folder folder;
  const std::string path = folder.path + "/t.csv";
  const auto refused = [&](const std::string& text, const ditto::TableLayout& layout, ErrorKind kind) {
    write(path, text);
    const auto message = error_of([&] { ditto::prepare_table(path, layout, {.out = folder.path + "/out"}); }, kind);
    CHECK_FALSE(fs::exists(folder.path + "/out/train-000000.tar"));
    return message;
  };
  CHECK(holds(refused("1,2,3,4,0\n1,2,x,4,0\n", kSmall, ErrorKind::data), path + ":2:3: found \"x\""));
  CHECK(holds(refused("1,2,3,4,0\n1,2,4,0\n", kSmall, ErrorKind::data), path + ":2: found 4 fields"));
  CHECK(holds(refused("1,2,17,4,0\n", kSmall, ErrorKind::data), "row 1, column 3: value 17.0 is outside"));
  CHECK(holds(refused("1,2,3,4,0.5\n", kSmall, ErrorKind::data), "label 0.5"));
  CHECK(holds(refused("1,2,3,0\n", kSmall, ErrorKind::config), "a row holds 3 values"));
  CHECK(holds(refused("", kSmall, ErrorKind::data), "no row"));
  CHECK(holds(refused("1,2,3,4,0\n1,2,\"3,4,0\n", kSmall, ErrorKind::data), path + ":2: a quote is not closed"));
  CHECK(holds(refused(std::string("1\0,\0", 4), kSmall, ErrorKind::data), "is UTF-16"));
  CHECK(holds(refused("1,2,nan,4,0\n", kSmall, ErrorKind::data), ":1:3"));
  auto named = kSmall;
  named.label = "clas";
  CHECK(holds(refused("a,b,c,d,class\n1,2,3,4,0\n", named, ErrorKind::config), "did you mean \"class\""));
}

TEST_CASE("a table of numbers is CSV as tables of texts are: quotes, line ends, blanks around numbers") {
  const auto table = formats::parse_number_table(
      "\r\n\"a; b\" ; c\r\n"
      "1 ;\"2\"\r\n"
      "\r\n"
      " \"3\" ;+4",
      "t");
  CHECK(table.columns == std::vector<std::string>{"a; b", "c"});
  CHECK(table.numbers == std::vector<double>{1, 2, 3, 4});
}

TEST_CASE("a gzip table that is cut off is refused") {
  const Folder folder;
  const std::string digits = std::string(DITTO_SOURCE_DIR) + "/tests/support/table.csv.gz";
  const auto whole = contents(digits);
  REQUIRE(formats::read_number_table(digits).rows() == 50);
  write(folder.path + "/t.csv.gz", whole.substr(0, whole.size() / 2));
  CHECK(holds(error_of([&] { formats::read_number_table(folder.path + "/t.csv.gz"); }, ErrorKind::data),
              "cannot be read"));
}

TEST_CASE("a folder's subfolders become classes, captions come along, and bytes stay as they are") {
  const Folder folder;
  write_picture(folder.path + "/in/dog/b.png", 1);
  write_picture(folder.path + "/in/cat/deep/a.png", 2);
  write(folder.path + "/in/cat/deep/a.txt", "a cat");
  write(folder.path + "/in/cat/notes.md", "not a picture");
  const auto made = ditto::prepare_folder(folder.path + "/in", {.out = folder.path + "/out"});
  CHECK(made.classes == std::vector<std::string>{"cat", "dog"});
  CHECK(contents(folder.path + "/out/classes.json") == "[\n  \"cat\",\n  \"dog\"\n]\n");
  const auto samples = formats::shard_samples(formats::index_tar(made.shards.at(0)), "t");
  REQUIRE(samples.size() == 2);
  const auto file = formats::RandomFile::open(made.shards[0]);
  const auto text = [&](const formats::ShardMember* member) {
    const auto bytes = file->read(member->offset, member->size, "t");
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  CHECK(text(samples[0].find("png")) == contents(folder.path + "/in/cat/deep/a.png"));
  CHECK(text(samples[0].find("cls")) == "0");
  CHECK(text(samples[0].find("txt")) == "a cat");
  CHECK(text(samples[1].find("cls")) == "1");
  CHECK(samples[1].find("txt") == nullptr);
}

TEST_CASE("what is hidden or junk makes no class and no sample, and what else is not taken is said") {
  const Folder folder;
  const std::string in = folder.path + "/in", out = folder.path + "/out";
  for (const char* name : {"cat/a.png", "dog/b.png", ".ipynb_checkpoints/a-checkpoint.png", "__MACOSX/cat/._a.png",
                           "cat/@eaDir/a.png/thumb.png", "cat/.git/c.png"})
    write_picture(in + "/" + name, 1);
  for (const char* name : {"cat/._a.png", "cat/.DS_Store", "dog/Thumbs.db", "desktop.ini"}) write(in + "/" + name, "x");
  write(in + "/cat/a.txt", "a caption");
  write(in + "/cat/c.txt", "of nothing");
  for (int i = 0; i < 7; ++i) write(in + "/dog/" + std::to_string(i) + ".SVG", "<svg>");
  write(in + "/dog/scan", "text");
  write(in + "/papers/a.pdf", "%PDF");
  fs::create_directory_symlink(in + "/cat", in + "/more cats");
  fs::create_symlink(in + "/nowhere", in + "/dog/z.png");
  const auto made = ditto::prepare_folder(in, {.out = out});
  CHECK(made.train == 2);
  CHECK(made.classes == std::vector<std::string>{"cat", "dog"});
  CHECK(look(made)[0].labels == std::map<std::int64_t, std::int64_t>{{0, 1}, {1, 1}});
  CHECK(look(made)[0].members == std::map<std::string, std::int64_t>{{"cls", 2}, {"json", 2}, {"png", 2}, {"txt", 1}});
  CHECK(made.left_out ==
        std::vector<std::string>{
            ".pdf, not PNG, JPEG, WebP, AVIF, TIFF, GIF or BMP (1): papers/a.pdf",
            ".svg, not PNG, JPEG, WebP, AVIF, TIFF, GIF or BMP (7): dog/0.SVG, dog/1.SVG, dog/2.SVG, dog/3.SVG, "
            "dog/4.SVG, …",
            "files without a suffix, not PNG, JPEG, WebP, AVIF, TIFF, GIF or BMP (1): dog/scan",
            "folders without a picture, no classes (1): papers",
            "hidden, or left behind by a system or tool (8): .ipynb_checkpoints, __MACOSX, cat/.DS_Store, cat/._a.png, "
            "cat/.git, …",
            "links that lead nowhere (1): dog/z.png", "links to folders, which are not followed (1): more cats",
            "texts that are no caption: no picture has the name, or has another text beside it (1): cat/c.txt"});
}

TEST_CASE("pictures are told by what they hold, and stand upright wherever they are read") {
  const Folder folder;
  const std::string golden = std::string(DITTO_SOURCE_DIR) + "/tests/golden/formats/";
  write(folder.path + "/in/1.jfif", contents(golden + "oriented_1.jpg"));
  write(folder.path + "/in/2", contents(golden + "oriented_6.jpg"));
  write(folder.path + "/in/3.jpg_large", contents(golden + "rgb.webp"));
  write(folder.path + "/in/4.jpg", contents(golden + "rgb.png"));
  const auto made = ditto::prepare_folder(folder.path + "/in", {.out = folder.path + "/out"});
  CHECK(made.train == 4);
  CHECK(made.left_out.empty());
  CHECK(look(made)[0].members == std::map<std::string, std::int64_t>{{"jpg", 2}, {"json", 4}, {"png", 1}, {"webp", 1}});
  CHECK(look(made)[0].sizes ==
        std::map<std::string, std::int64_t>{{"8 x 16 x 3", 1}, {"16 x 8 x 3", 1}, {"12 x 16 x 3", 2}});
}

TEST_CASE("nothing has its name before all of a data set is written") {
  const Folder folder;
  const std::string in = folder.path + "/in", out = folder.path + "/out";
  for (int i = 0; i < 5; ++i) write_picture(in + "/cat/" + std::to_string(i) + ".png", i);
  write(out + "/train-000007.tar.unfinished", "of a command that was killed");
  write(out + "/notes.txt", "the user's own");
  bool seen = false;
  ditto::PrepareOptions options{.out = out, .shard_samples = 2};
  options.progress = [&](std::int64_t done, std::int64_t) {
    for (const auto& entry : fs::directory_iterator(out)) CHECK(entry.path().extension() != ".tar");
    CHECK_FALSE(fs::exists(out + "/train-000007.tar.unfinished"));
    CHECK(fs::exists(out + "/train-000000.tar.unfinished"));
    seen = done == 5;
  };
  const auto made = ditto::prepare_folder(in, options);
  CHECK(seen);
  CHECK(made.shards.size() == 3);
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(out)) names.insert(entry.path().filename().string());
  CHECK(names == std::set<std::string>{".nv-meta", "classes.json", "SHA256SUMS", "notes.txt", "report.jsonl",
                                       "train-000000.tar", "train-000000.tar.idx", "train-000001.tar",
                                       "train-000001.tar.idx", "train-000002.tar", "train-000002.tar.idx"});
  names.clear();
  for (const auto& entry : fs::directory_iterator(out + "/.nv-meta")) names.insert(entry.path().filename().string());
  CHECK(names == std::set<std::string>{".info.json", "dataset.yaml", "index.sqlite", "index.uuid", "split.yaml"});
}

TEST_CASE("the same pictures give the same bytes, notes for Energon included; another set's notes are not replaced") {
  const Folder folder;
  for (int i = 0; i < 5; ++i) write_picture(folder.path + "/in/cat/" + std::to_string(i) + ".png", i);
  for (const char* out : {"/a", "/b"})
    ditto::prepare_folder(folder.path + "/in", {.out = folder.path + out, .shard_samples = 2, .validation = 0.3});
  std::size_t files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path + "/a")) {
    if (!entry.is_regular_file()) continue;
    ++files;
    CHECK_MESSAGE(
        contents(entry.path()) == contents(folder.path + "/b" + entry.path().string().substr(folder.path.size() + 2)),
        entry.path().string());
  }
  CHECK(files == 2 * 3 + 5 + 3);  // shards and their indices, notes, classes.json, report.jsonl, SHA256SUMS
  write(folder.path + "/c/.nv-meta/split.yaml", "split_parts: {}\n");
  CHECK(holds(
      error_of([&] { ditto::prepare_folder(folder.path + "/in", {.out = folder.path + "/c"}); }, ErrorKind::config),
      "split.yaml: is there already"));
}

TEST_CASE("a folder for shards that is deleted meanwhile is said, and one that has a folder in their place") {
  const Folder folder;
  const std::string in = folder.path + "/in", out = folder.path + "/out";
  for (int i = 0; i < 3; ++i) write_picture(in + "/" + std::to_string(i) + ".png", i);
  ditto::PrepareOptions options{.out = out, .shard_samples = 1};
  options.progress = [&](std::int64_t done, std::int64_t) {
    if (done == 3) fs::remove_all(out);
  };
  CHECK(holds(error_of([&] { ditto::prepare_folder(in, options); }, ErrorKind::data), out));
  CHECK_FALSE(fs::exists(out));
  options.progress = [&](std::int64_t done, std::int64_t) {
    if (done == 3) write(out + "/train-000001.tar/in the way", "");
  };
  CHECK(holds(error_of([&] { ditto::prepare_folder(in, options); }, ErrorKind::data), "train-000001.tar"));
  CHECK(std::distance(fs::directory_iterator(out), {}) == 1);  // what stood in the way
}

TEST_CASE("folders that cannot be prepared are refused, and leave no shard behind") {
  const Folder folder;
  fs::create_directories(folder.path + "/empty");
  CHECK(holds(error_of([&] { ditto::prepare_folder(folder.path + "/empty", {.out = folder.path + "/out"}); },
                       ErrorKind::config),
              "holds no PNG, JPEG, WebP, AVIF, TIFF, GIF or BMP picture"));
  write(folder.path + "/scans/a.svg", "<svg>");
  CHECK(holds(error_of([&] { ditto::prepare_folder(folder.path + "/scans", {.out = folder.path + "/out"}); },
                       ErrorKind::config),
              "left out: .svg, not PNG, JPEG, WebP, AVIF, TIFF, GIF or BMP (1): a.svg"));
  write_picture(folder.path + "/in/cat/a.png", 1);
  write(folder.path + "/in/cat/b.png", contents(folder.path + "/in/cat/a.png").substr(0, 40));
  CHECK(holds(
      error_of([&] { ditto::prepare_folder(folder.path + "/in", {.out = folder.path + "/out"}); }, ErrorKind::data),
      "a picture cannot be read: cat/b.png"));
  write(folder.path + "/in/cat/c.png", "");
  const auto both =
      error_of([&] { ditto::prepare_folder(folder.path + "/in", {.out = folder.path + "/out"}); }, ErrorKind::data);
  CHECK(holds(both, "2 pictures cannot be read, the first of them cat/b.png: "));
  CHECK(holds(both, "; mend or remove what is named, or leave it out: --skip-bad"));
  std::vector<std::string> told;
  ditto::FolderOptions options;
  options.tell_bad = [&](const auto& bad) { told = bad; };
  error_of([&] { ditto::prepare_folder(folder.path + "/in", {.out = folder.path + "/out"}, options); },
           ErrorKind::data);
  REQUIRE(told.size() == 2);
  CHECK(holds(told[1], "cat/c.png: the picture is empty"));
  CHECK(fs::is_empty(folder.path + "/out"));
  write_picture(folder.path + "/in/loose.png", 1);
  CHECK(holds(
      error_of([&] { ditto::prepare_folder(folder.path + "/in", {.out = folder.path + "/out"}); }, ErrorKind::config),
      "loose.png"));
  write(folder.path + "/out/train-000000.tar", "");
  CHECK(holds(error_of([&] { ditto::prepare_folder(folder.path + "/in/cat", {.out = folder.path + "/out"}); },
                       ErrorKind::config),
              "is there already"));
}

TEST_CASE("verify names every problem of a shard and reads on") {
  const Folder folder;
  const std::string path = folder.path + "/a.tar";
  {
    formats::TarWriter tar(path);
    const auto png = formats::encode_png({2, 2, 1, {1, 2, 3, 4}});
    auto cut = png;
    cut.resize(40);
    tar.add("0.png", png);
    tar.add("0.cls", "1");
    tar.add("1.png", cut);
    tar.add("1.cls", "1");
    tar.add("2.png", png);
    tar.add("3.png", png);
    tar.add("3.cls", "one");
    tar.add("4.cls", "1");
    tar.finish();
  }
  const auto report = ditto::inspect_shard(path, Depth::whole);
  CHECK(report.samples == 5);
  CHECK(report.members == std::map<std::string, std::int64_t>{{"cls", 4}, {"png", 4}});
  REQUIRE(report.problems.size() == 4);
  CHECK(holds(report.problems[0], "a.tar:1.png"));
  CHECK(holds(report.problems[1], "a.tar:3.cls"));
  CHECK(holds(report.problems[2], "a.tar:2: has no member \"2.cls\""));
  CHECK(holds(report.problems[3], "a.tar:4: has no picture, latent or video"));
}

TEST_CASE("samples whose names collide are refused") {
  const Folder folder;
  const auto samples_of = [&](const std::vector<std::string>& names) {
    formats::TarWriter tar(folder.path + "/a.tar");
    for (const auto& name : names) tar.add(name, "x");
    tar.finish();
    return formats::shard_samples(formats::index_tar(folder.path + "/a.tar"), "a.tar");
  };
  CHECK(holds(error_of(
                  [&] {
                    samples_of({"0.png", "0.png"});
                  },
                  ErrorKind::data),
              "a.tar:0.png: this member is there twice"));
  CHECK(holds(error_of([&] { samples_of({"0.png", "1.png", "0.cls"}); }, ErrorKind::data), "stands in two places"));
  // As WebDataset does, without files that are no part of a sample.
  const auto samples =
      samples_of({"noext", "a/._0.png", "a/0.png", "__notes__/0.png", "b/0.png", "b/0.SEG.PNG", ".b/x.png"});
  REQUIRE(samples.size() == 3);
  CHECK(samples[0].key == "a/0");
  CHECK(samples[1].members[1].extension == "seg.png");
  CHECK(samples[2].key == ".b/x");
}
