// Which members of a shard make its samples.
#include "core/formats/archive/shard.h"

#include <doctest/doctest.h>

#include "core/formats/junk_name.h"
#include "support/files.h"

using namespace ditto::formats;
using ditto::ErrorKind;
using ditto::test::contains;
using ditto::test::error_of;

namespace {

TarIndex index_of_names(const std::vector<std::string>& names) {
  TarIndex index;
  for (const auto& name : names) index.members.push_back({name, 512, 1, 0});
  return index;
}

// "key: ext ext; …"
std::string samples_text(const std::vector<ShardSample>& samples) {
  std::string text;
  for (const auto& sample : samples) {
    text += (text.empty() ? "" : "; ") + sample.key + ":";
    for (const auto& member : sample.members) text += " " + member.extension;
  }
  return text;
}

}  // namespace

TEST_CASE("junk is known by its name, in any case of letters, and by the folders that it lies in") {
  for (const char* name : {"._x.tar", ".DS_Store", ".cache", "Thumbs.db", "THUMBS.DB", "Desktop.ini", "desktop.ini",
                           "__MACOSX", "@eaDir", "#recycle", "$RECYCLE.BIN", "System Volume Information", "lost+found",
                           "Icon\r", "__pycache__", "@Recycle", "ehthumbs.db"}) {
    CAPTURE(name);
    CHECK(is_junk_name(name));
    CHECK(is_junk_path("a/" + std::string(name)));
    CHECK(is_junk_path("./" + std::string(name) + "/a/0.png"));
  }
  for (const char* name :
       {"", ".", "..", "a", "x.tar", "Icon", "thumbs", "recycle", "_x", "MACOSX", "desktop.ini.txt"}) {
    CAPTURE(name);
    CHECK(!is_junk_name(name));
    CHECK(!is_junk_path("../a/" + std::string(name)));
  }
}

TEST_CASE("what systems left in an archive is no part of a sample, unless an index counts it") {
  const auto index = index_of_names({"./0.png", "./@eaDir/0.png/SYNOPHOTO_THUMB_M.jpg", "./Thumbs.db",
                                     "__MACOSX/._0.png", ".hidden/1.png", "./._0.cls", "./0.cls", "1.png"});
  CHECK(samples_text(shard_samples(index, "x.tar", {is_meant_part})) == "./0: png cls; 1: png");
  CHECK(samples_text(shard_samples(index_of_names({"a/Thumbs.db", "a/0.png"}), "x.tar")) == "a/Thumbs: db; a/0: png");
}

TEST_CASE("a second member of a name ends it where it is wanted, and costs nothing where nobody wants it") {
  const auto twice = index_of_names({"README.md", "0.png", "0.json", "0.JSON", "1.png", "README.md", "0.txt"});
  CHECK(contains(error_of(ErrorKind::data, [&] { shard_samples(twice, "x.tar"); }),
                 "x.tar:0.JSON: this member is there twice"));
  const auto refuses = [](std::string_view suffix) {
    return [suffix](const TarMember& member, const ditto::Error&) { return member.name.ends_with(suffix); };
  };
  CHECK(samples_text(shard_samples(twice, "x.tar", {is_sample_part, refuses(".png")})) ==
        "README: md; 0: png json; 1: png");
  CHECK(contains(error_of(ErrorKind::data,
                          [&] {
                            shard_samples(twice, "x.tar", {is_sample_part, refuses(".txt")});
                          }),
                 "x.tar:0.txt: its sample \"0\" stands in two places of the shard"));
}
