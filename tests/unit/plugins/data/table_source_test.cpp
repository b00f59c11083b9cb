// The plugin table: pictures and videos that a CSV or JSON Lines table names.
#include <doctest/doctest.h>
#include <torch/types.h>

#include <ditto/data.h>
#include <ditto/error.h>
#include <ditto/math/pictures.h>

#include "core/data/loader.h"
#include "core/formats/picture/picture.h"
#include "tests/support/files.h"
#include "tests/support/open_plugin.h"
#include "tests/support/videos.h"

namespace {

namespace formats = ditto::formats;
using ditto::Error;
using ditto::ErrorKind;
using ditto::kOwnSide;
using ditto::SplitOf;
using ditto::test::contains;
using ditto::test::error_of;
using ditto::test::TemporaryFolder;
using ditto::test::write_text;
using Options = std::map<std::string, ditto::OptionValue>;
using Sides = std::vector<int64_t>;
using Strings = std::vector<std::string>;

// A grey picture of one value.
void write_picture(const std::string& path, int height, int width, int value) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  formats::write_png(
      path, {width, height, 1,
             std::vector<std::uint8_t>(static_cast<size_t>(height * width), static_cast<std::uint8_t>(value))});
}

std::shared_ptr<ditto::Source> open_table(const TemporaryFolder& folder, Options options,
                                          SplitOf split = SplitOf::train) {
  options.emplace("table", "t.csv");
  options.emplace("channels", int64_t{1});
  if (!options.count("sizes")) options.emplace("size", Sides{4, 4});
  return ditto::test::make_plugin<ditto::Source>("data", "table", options,
                                                 {.split = split, .folder = folder.path().string()});
}

int value_of(const torch::Tensor& image) {
  return static_cast<int>(std::lround((image.mean().item<double>() + 1) * 127.5));
}

std::string text_of(const torch::Tensor& t) { return {static_cast<const char*>(t.const_data_ptr()), t.nbytes()}; }

}  // namespace

TEST_CASE("rows give pictures, classes by number or name, and captions, in the table's order") {
  const TemporaryFolder folder;
  for (int i = 0; i < 3; ++i) write_picture(folder / "p/" + std::to_string(i) + ".png", 4, 6, 10 * i);
  write_text(folder / "t.csv",
             "text,path,kind\n\"a cat, at rest\",p/0.png,cat\nein Kätzchen,p/1.png,1\n,p/2.png,dog\n");
  write_text(folder / "held.jsonl", "{\"path\": \"2.png\", \"kind\": 0, \"text\": null}\n");
  const Options options{
      {"label", "kind"}, {"caption", "text"}, {"names", Strings{"dog", "cat"}}, {"validation_table", "held.jsonl"}};
  const auto source = open_table(folder, options);
  REQUIRE(source->size() == 3);
  CHECK(source->makes()[0].shape == Sides{1, 4, 4});
  CHECK(find(source->makes(), "label")->names == Strings{"dog", "cat"});
  const std::vector<std::pair<int64_t, std::string>> expected{{1, "a cat, at rest"}, {1, "ein Kätzchen"}, {0, ""}};
  for (int64_t i = 0; i < 3; ++i) {
    const auto sample = source->read(i);
    const auto& [label, text] = expected[static_cast<size_t>(i)];
    CHECK(sample.place == "t.csv:" + std::to_string(i + 2) + ":p/" + std::to_string(i) + ".png");
    CHECK(value_of(sample.tensors.at("image")) == 10 * i);
    CHECK(sample.tensors.at("image").sizes() == at::IntArrayRef{1, 4, 4});
    CHECK(sample.tensors.at("label").item<int64_t>() == label);
    CHECK(text_of(sample.tensors.at("caption")) == text);
    CHECK(source->info(i) ==
          ditto::SampleInfo{{"image", {1, 4, 4}}, {"label", {}}, {"caption", {static_cast<int64_t>(text.size())}}});
  }
  auto held_out = options;
  held_out["folder"] = "p";
  CHECK(value_of(open_table(folder, held_out, SplitOf::validation)->read(0).tensors.at("image")) == 20);
}

TEST_CASE(
    "a label that is a name is that class, whatever number it could be, and one that could be either is refused") {
  const TemporaryFolder folder;
  write_picture(folder / "0.png", 4, 4, 7);
  const std::vector<Strings> lists{{"1", "2", "3"},      {"2", "0", "1"},       {"01", "02"}, {"1.0", "2.0", "0.0"},
                                   {"cat", "1", "dog"},  {"10", "20", "30"},    {"-1", "0"},  {"2021", "2022"},
                                   {"3", "2", "1", "0"}, {"1", "10", "11", "2"}};
  for (const auto& names : lists) {
    std::string rows = "path,kind\n";
    for (const auto& name : names) rows += "0.png," + name + "\n";
    write_text(folder / "t.csv", rows);
    const Options options{{"label", "kind"}, {"names", names}};
    const auto source = open_table(folder, options);
    for (size_t i = 0; i < names.size(); ++i)
      CHECK(source->read(static_cast<int64_t>(i)).tensors.at("label").item<int64_t>() == static_cast<int64_t>(i));
    for (const auto* number : {"0", "1", "4"}) {
      if (std::find(names.begin(), names.end(), number) != names.end()) continue;
      write_text(folder / "t.csv", rows + "0.png," + number + "\n");
      const auto said = error_of(ErrorKind::config, [&] { open_table(folder, options); });
      CHECK(contains(said, "t.csv:" + std::to_string(names.size() + 2) + ": kind is " + number));
    }
  }
  write_text(folder / "t.csv", "path,kind\n0.png,cat\n0.png,0\n");  // names that are words leave numbers what they are
  CHECK(open_table(folder, {{"label", "kind"}, {"names", Strings{"dog", "cat"}}})
            ->read(1)
            .tensors.at("label")
            .item<int64_t>() == 0);
}

TEST_CASE("what a table holds are its pictures, and of videos the frames that are taken") {
  const TemporaryFolder folder;
  for (const auto* name : {"clip/1.png", "clip/2.png", "clip/10.png", "alone.png"})
    write_picture(folder / name, 4, 4, 7);
  const auto at = [&](const std::string& name) { return (folder.path() / name).string(); };
  write_text(folder / "t.csv", "path,n,k\nclip,2,2\nalone.png,1,1\nclip,1,1\nclip,2,2\n");
  CHECK(open_table(folder, {})->holds() == Strings{at("clip"), at("alone.png"), at("clip"), at("clip")});
  const auto videos = open_table(folder, {{"frames", "n"}, {"interval", "k"}});
  CHECK(videos->holds() == Strings{at("clip/1.png"), at("clip/10.png"), at("alone.png"), at("clip/1.png"),
                                   at("clip/1.png"), at("clip/10.png")});
  REQUIRE(videos->notes().size() == 1);
  CHECK(contains(videos->notes().front(), "1 rows are the same as others"));
}

TEST_CASE("bad rows are named by file and line and left out, bad pictures are counted by the loader") {
  const TemporaryFolder folder;
  write_picture(folder / "0.png", 4, 4, 7);
  write_text(folder / "broken.png", "no picture");
  write_text(folder / "t.csv",
             "path,class\n0.png,1\n0.png\n,1\n0.png,one\nmissing.png,0\nbroken.png,0\nx.mp4,0\n0.png,0\n");
  const auto source = open_table(folder, {{"label", "class"}, {"classes", int64_t{2}}});
  CHECK(source->size() == 5);
  const auto warnings = source->warnings();
  const std::vector<std::string> said{"t.csv:3: has 1 fields; the first line names 2", "t.csv:4: has no path",
                                      "t.csv:5: class is \"one\"; expected an integer",
                                      "t.csv: 3 bad rows are left out"};
  REQUIRE(warnings.size() == said.size());
  for (size_t i = 0; i < said.size(); ++i) CHECK(contains(warnings[i], said[i]));
  ditto::LoaderOptions options;
  options.shuffle = false;
  std::vector<std::string> log;
  ditto::Loader loader(source, options, 1, [&](const std::string& line) { log.push_back(line); });
  CHECK(loader.next({0, 5}).weights == std::vector<double>{1, 0, 0, 0, 1});
  CHECK(contains(log.back(), "t.csv:8:x.mp4: is a video file"));
  options.strict = true;
  CHECK(contains(error_of(ErrorKind::data, [&] { ditto::Loader(source, options, 1, {}); }), "t.csv:3"));
}

TEST_CASE("of several sizes each picture takes the one nearest to its proportions, from columns or headers") {
  const TemporaryFolder folder;
  write_picture(folder / "wide.png", 10, 30, 1);
  write_picture(folder / "tall.png", 31, 10, 2);
  write_picture(folder / "square.png", 9, 9, 3);
  write_text(folder / "cut.png", "\x89PNG\r\n\x1a\n");
  write_text(folder / "t.csv", "path,h,w\nwide.png,10,30\ntall.png,31,10\nsquare.png,9,9\ncut.png,8,8\n");
  Options options{{"sizes", Strings{"8x8", "4x12", "12x4", "16x16"}}};
  const auto from_headers = open_table(folder, options);
  options["height"] = "h";
  options["width"] = "w";
  const auto from_columns = open_table(folder, options);
  CHECK(from_headers->makes()[0].shape == Sides{1, kOwnSide, kOwnSide});
  CHECK(from_headers->size() == 3);
  CHECK(from_columns->size() == 4);
  REQUIRE(from_headers->warnings().size() == 2);
  CHECK(contains(from_headers->warnings()[0], "t.csv:5:cut.png"));
  const std::vector<Sides> expected{{1, 4, 12}, {1, 12, 4}, {1, 8, 8}};
  for (const auto& source : {from_headers, from_columns})
    for (size_t i = 0; i < expected.size(); ++i) {
      CHECK(source->info(static_cast<int64_t>(i)).at("image") == expected[i]);
      CHECK(source->read(static_cast<int64_t>(i)).tensors.at("image").sizes() == at::IntArrayRef(expected[i]));
    }
}

TEST_CASE("videos are folders of frames, taken at the row's interval; a picture is a video of one frame") {
  const TemporaryFolder folder;
  for (int i = 1; i <= 12; ++i) write_picture(folder / "film/" + std::to_string(i) + ".png", 4, 4, 10 * i);
  write_picture(folder / "still.png", 4, 4, 5);
  write_text(folder / "t.csv", "path,frames,interval\nfilm,4,3\nfilm,2,\nstill.png,1,1\nfilm,5,3\nstill.png,2,1\n");
  const auto source = open_table(folder, {{"frames", "frames"}, {"interval", "interval"}});
  CHECK(source->makes()[0].shape == Sides{1, kOwnSide, 4, 4});
  const std::vector<std::vector<int>> expected{{10, 40, 70, 100}, {10, 20}, {5}};
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto video = source->read(static_cast<int64_t>(i)).tensors.at("image");
    CHECK(source->info(static_cast<int64_t>(i)).at("image") == video.sizes().vec());
    REQUIRE(video.size(1) == static_cast<int64_t>(expected[i].size()));
    for (size_t frame = 0; frame < expected[i].size(); ++frame)
      CHECK(value_of(video.select(1, static_cast<int64_t>(frame))) == expected[i][frame]);
  }
  CHECK(contains(error_of(ErrorKind::data, [&] { source->read(3); }),
                 "t.csv:5:film: has 12 frames; 5 of them, each 3 further, need 13"));
  CHECK(contains(error_of(ErrorKind::data, [&] { source->read(4); }), "is no folder and no video file, and 2 frames"));
}

TEST_CASE(
    "video files give frames from the row's first on at its interval, by the host's decoder; bad ones are named") {
  if (!ditto::test::video_decoder()) return;
  const TemporaryFolder folder;
  for (const char* name : {"h264.mp4", "h264_turned.mp4", "vp9.webm"})
    std::filesystem::copy(ditto::test::golden_video(name), folder.path() / name);
  std::filesystem::copy(folder.path() / "h264.mp4", folder.path() / "CUT.MP4");
  std::filesystem::resize_file(folder.path() / "CUT.MP4", 900);
  write_picture(folder / "film/1.png", 24, 32, 90);
  write_picture(folder / "film/2.png", 24, 32, 120);
  write_text(folder / "t.csv",
             "path,frames,interval,first\nh264.mp4,3,2,4\nvp9.webm,2,9,\nfilm,1,1,1\nCUT.MP4,1,1,0\nh264.mp4,3,2,20\n"
             "h264_turned.mp4,1,1,0\n");
  Options options{{"frames", "frames"},     {"interval", "interval"}, {"first", "first"},
                  {"channels", int64_t{3}}, {"size", Sides{24, 32}},  {"table", "t.csv"}};
  int asked = 0;
  ditto::Source::Needs needs{.split = SplitOf::train, .folder = folder.path().string()};
  needs.decoder = [&](const std::string& name) {
    ++asked;
    CHECK(name == "ffmpeg");
    return ditto::test::video_decoder();
  };
  const auto source = ditto::test::make_plugin<ditto::Source>("data", "table", options, needs);
  CHECK(asked == 1);
  const auto golden = [&](const char* name, int64_t frame) {
    const auto bytes = ditto::test::read_text(ditto::test::golden_video(name));
    const auto pixels =
        ditto::test::pixels_of(*ditto::test::open_video(*ditto::test::video_decoder(), bytes, name), {frame, 1, 1});
    return ditto::image_of_pixels(pixels, 24, 32, 3);
  };
  const auto first = source->read(0).tensors.at("image");
  REQUIRE(first.sizes() == at::IntArrayRef{3, 3, 24, 32});
  CHECK(source->info(0).at("image") == first.sizes().vec());
  for (int64_t i = 0; i < 3; ++i) CHECK(first.select(1, i).equal(golden("h264.mp4", 4 + 2 * i)));
  const auto second = source->read(1).tensors.at("image");
  for (int64_t i = 0; i < 2; ++i) CHECK(second.select(1, i).equal(golden("vp9.webm", 9 * i)));
  CHECK(value_of(source->read(2).tensors.at("image")) == 120);
  CHECK(contains(error_of(ErrorKind::data, [&] { source->read(3); }), "t.csv:5:CUT.MP4: cannot be read as MP4"));
  CHECK(contains(error_of(ErrorKind::data, [&] { source->read(4); }), "t.csv:6:h264.mp4: has 24 frames; 3 of them"));
  ditto::LoaderOptions loading;
  loading.shuffle = false;
  std::vector<std::string> log;
  options["sizes"] = Strings{"24x32", "32x24"};
  options.erase("size");
  const auto of_sizes = ditto::test::make_plugin<ditto::Source>("data", "table", options, needs);
  CHECK(of_sizes->size() == 5);  // the cut one has no header
  CHECK(of_sizes->info(4).at("image") == Sides{3, 1, 32, 24});
  write_text(folder / "t.csv", "path,frames\nh264.mp4,1\nCUT.MP4,1\nvp9.webm,1\n");
  ditto::Loader loader(ditto::test::make_plugin<ditto::Source>(
                           "data", "table", {{"table", "t.csv"}, {"frames", "frames"}, {"size", Sides{8, 8}}}, needs),
                       loading, 1, [&](const std::string& line) { log.push_back(line); });
  CHECK(loader.next({0, 3}).weights == std::vector<double>{1, 0, 1});
  CHECK(contains(log.back(), "t.csv:3:CUT.MP4"));
  needs.decoder = {};
  const Options without{{"table", "t.csv"}, {"frames", "frames"}, {"size", Sides{8, 8}}};
  CHECK(contains(
      error_of(ErrorKind::plugin, [&] { ditto::test::make_plugin<ditto::Source>("data", "table", without, needs); }),
      "data.decoder: the program that reads this table has no decoders"));
}

TEST_CASE("rows are taken by the least and the most of their columns") {
  const TemporaryFolder folder;
  for (int i = 0; i < 4; ++i) write_picture(folder / std::to_string(i) + ".png", 4, 4, i);
  write_text(folder / "t.csv", "path,score,width\n0.png,4.5,256\n1.png,6,128\n2.png,5,512\n3.png,,512\n");
  const auto source =
      open_table(folder, {{"at_least", Strings{"score=4.5", "width=200"}}, {"at_most", Strings{"score=5"}}});
  REQUIRE(source->size() == 2);
  CHECK(value_of(source->read(0).tensors.at("image")) == 0);
  CHECK(value_of(source->read(1).tensors.at("image")) == 2);
  CHECK(contains(source->warnings().front(), "t.csv:5: score is \"\"; expected a number"));
  CHECK(contains(error_of(ErrorKind::data,
                          [&] {
                            open_table(folder, {{"at_least", Strings{"score=9"}}});
                          }),
                 "none of its 4 rows is left"));
}

TEST_CASE("the fingerprint follows rows and pictures; recipes that do not fit are refused") {
  const TemporaryFolder folder;
  write_picture(folder / "0.png", 4, 4, 1);
  write_text(folder / "t.csv", "path,class\n0.png,3\n");
  const Options labelled{{"label", "class"}, {"classes", int64_t{4}}};
  const auto before = open_table(folder, labelled)->fingerprint();
  CHECK(open_table(folder, labelled)->fingerprint() == before);
  write_picture(folder / "0.png", 4, 4, 2);
  CHECK(open_table(folder, labelled)->fingerprint() != before);
  write_picture(folder / "0.png", 4, 4, 1);
  write_text(folder / "t.csv", "path,class\n0.png,2\n");
  CHECK(open_table(folder, labelled)->fingerprint() != before);
  const auto refusal = [&](Options options) {
    return error_of(ErrorKind::config, [&] { open_table(folder, options); });
  };
  CHECK(contains(refusal({{"label", "class"}, {"classes", int64_t{2}}}), "but 1 of 1 are larger; the first: "));
  CHECK(contains(refusal({{"label", "class"}}), "is 0, but data.label is \"class\""));
  CHECK(contains(refusal({{"size", Sides{}}}), "is not there"));
  CHECK(contains(refusal({{"at_least", Strings{"score"}}}), "write \"COLUMN=NUMBER\""));
  CHECK(contains(refusal({{"interval", "class"}}), "goes with data.frames"));
  CHECK(contains(error_of(ErrorKind::data,
                          [&] {
                            open_table(folder, {{"caption", "text"}});
                          }),
                 "has no column \"text\""));
}
