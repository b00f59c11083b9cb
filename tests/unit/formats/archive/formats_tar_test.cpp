// Tar shards: places of members in archives of every form, damage and where it is, and archives equal for equal
// members.
#include "core/formats/archive/tar.h"

#include <doctest/doctest.h>

#include <sys/stat.h>

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

TarIndex report(std::string_view file) { return index_tar(as_bytes(file), "x.tar", OnDamage::report); }

std::string tar_refusal(std::string_view file) {
  return error_of(ErrorKind::data, [&] { index_tar(as_bytes(file), "x.tar"); });
}

std::string data_of(const std::string& file, const TarMember& member) {
  return file.substr(member.offset, member.size);
}

std::string small_tar() {
  const TemporaryFolder folder;
  TarWriter writer(folder / "a.tar");
  writer.add("0.txt", "zero");
  writer.add("1.txt", "one");
  writer.add("2.txt", std::string(1000, '2'));
  writer.finish();
  return read_text(folder / "a.tar");
}

}  // namespace

TEST_CASE("members of ustar, GNU and pax archives are found where they lie") {
  for (const char* name : {"ustar.tar", "gnu.tar", "pax.tar"}) {
    CAPTURE(name);
    const std::string file = read_text(golden_format(name));
    const TarIndex index = index_tar(golden_format(name).string());
    CHECK(index.damage.empty());
    std::vector<std::pair<std::string, std::string>> expected{
        {"a.txt", "AAAA"},
        {"empty.txt", ""},
        {"b.bin", std::string(600, 'B')},
        {std::string(90, 'x') + "/" + std::string(90, 'y'), "split"}};
    if (std::string_view(name) != "ustar.tar") {
      expected.emplace_back(std::string(300, 'z'), "");
      expected.emplace_back(std::string(300, 'w'), "long");
    }
    expected.emplace_back("\u00e9.txt", "accent");
    REQUIRE(index.members.size() == expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CHECK(index.members[i].name == expected[i].first);
      CHECK(data_of(file, index.members[i]) == expected[i].second);
    }
  }
}

TEST_CASE("an archive that was written reads back, and depends on its members alone") {
  const TemporaryFolder folder;
  const std::vector<std::pair<std::string, std::string>> members{
      {"a.png", "hello"},
      {"\u00e9/b.txt", ""},
      {std::string(150, 'x') + "/" + std::string(120, 'y'), std::string(513, 'L')}};
  for (const char* path : {"one.tar", "two.tar"}) {
    const mode_t mask = umask(std::string(path) == "one.tar" ? 0 : 077);
    TarWriter writer(folder / path);
    for (const auto& [name, data] : members) writer.add(name, data);
    writer.finish(Sync::fsync);
    umask(mask);
  }
  const std::string file = read_text(folder / "one.tar");
  CHECK(file == read_text(folder / "two.tar"));
  const TarIndex index = index_tar(folder / "one.tar");
  REQUIRE(index.members.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(index.members[i].name == members[i].first);
    CHECK(data_of(file, index.members[i]) == members[i].second);
  }
}

TEST_CASE("an archive without members is whole") {
  const TemporaryFolder folder;
  TarWriter writer(folder / "a.tar");
  writer.finish();
  CHECK(index_tar(folder / "a.tar").members.empty());
}

TEST_CASE("what is no tar is refused, damage allowed or not") {
  for (const OnDamage on_damage : {OnDamage::refuse, OnDamage::report}) {
    const auto words = [&](std::string_view file) {
      return error_of(ErrorKind::data, [&] { index_tar(as_bytes(file), "x.tar", on_damage); });
    };
    CHECK(contains(words(""), "x.tar: the file is empty"));
    CHECK(contains(words("hello"), "not a tar archive"));
    CHECK(contains(words(std::string(2000, 'x')), "not a tar archive"));
    CHECK(contains(words("\x1f\x8b\x08" + std::string(600, 'x')), "compressed"));
    CHECK(contains(words("\x28\xb5\x2f\xfd" + std::string(600, 'x')), "compressed"));
    CHECK(contains(words(small_tar().substr(0, 300)), "not a tar archive"));
    CHECK(contains(words("\x89PNG\r\n\x1a\n" + std::string(600, '\0')), "not a tar archive"));
  }
  CHECK(contains(error_of(ErrorKind::data, [] { index_tar("/nowhere/a.tar", OnDamage::report); }), "No such file"));
}

TEST_CASE("a damaged header is named by its place, and the members before it stay") {
  const std::string good = small_tar();
  for (const std::size_t header : {1024u, 2048u}) {
    std::string bad = good;
    bad[header + 3] ^= 1;
    const TarIndex index = report(bad);
    CHECK(index.members.size() == header / 1024);
    CHECK(contains(index.damage, "at byte " + std::to_string(header)));
    CHECK(contains(tar_refusal(bad), "x.tar: a header is damaged"));
  }
  std::string bad = good;
  bad[0] ^= 1;
  CHECK(contains(tar_refusal(bad), "not a tar archive"));
}

TEST_CASE("every cut of an archive is damage, and no member reaches over the end") {
  const std::string good = small_tar();
  const std::uint64_t end = report(good).members.back().offset + 1024;  // of the last member's padding
  for (std::size_t length = 512; length < end; ++length) {
    const TarIndex index = report(good.substr(0, length));
    CHECK(index.damage != "");
    for (const TarMember& member : index.members) CHECK(member.offset + member.size <= length);
    const std::size_t whole = (length >= 516) + (length >= 1539) + (length >= 3560);
    CHECK(index.members.size() == whole);
  }
  CHECK(contains(report(good.substr(0, 1024)).damage, "no end mark"));
  CHECK(contains(report(good.substr(0, 2600)).damage, "'2.txt' of 1000 bytes is cut off"));
}

TEST_CASE("every flipped byte of a header is damage or another name, never a crash or a member outside") {
  for (const char* name : {"gnu.tar", "pax.tar"}) {
    const std::string good = read_text(golden_format(name)).substr(0, 12288);
    for (std::size_t at = 0; at < good.size(); at += 3) {
      for (const char value : {'\0', '7', '\xff'}) {
        std::string bad = good;
        bad[at] = value;
        try {
          for (const TarMember& member : report(bad).members) REQUIRE(member.offset + member.size <= bad.size());
        } catch (const ditto::Error& error) {
          REQUIRE(error.kind() == ErrorKind::data);
        }
      }
    }
  }
}

TEST_CASE("a member that claims to be huge is cut off") {
  std::string bad = small_tar();
  bad.replace(1024 + 124, 12, std::string("77777777777\0", 12));
  unsigned sum = 0;
  bad.replace(1024 + 148, 8, 8, ' ');
  for (std::size_t i = 0; i < 512; ++i) sum += static_cast<unsigned char>(bad[1024 + i]);
  char text[9];
  std::snprintf(text, sizeof text, "%06o", sum);
  bad.replace(1024 + 148, 8, std::string(text, 6) + std::string("\0 ", 2));
  const TarIndex index = report(bad);
  CHECK(index.members.size() == 1);
  CHECK(contains(index.damage, "'1.txt' of 8589934591 bytes is cut off at byte 1024"));
}

namespace {

// A header as GNU tar writes it; `type` and `link` as the format has them.
std::string header_of(const std::string& name, std::size_t size, char type = '0', const std::string& link = "") {
  std::string header(512, '\0');
  char digits[13];
  header.replace(0, name.size(), name);
  header.replace(100, 7, "0000644");
  std::snprintf(digits, sizeof digits, "%011zo", size);
  header.replace(124, 11, digits, 11);
  header.replace(136, 11, "00000000000");
  header.replace(148, 8, 8, ' ');
  header[156] = type;
  header.replace(157, link.size(), link);
  header.replace(257, 8, "ustar  ", 8);
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  std::snprintf(digits, sizeof digits, "%06o", sum);
  header.replace(148, 7, digits, 7);
  return header;
}

std::string member_of(const std::string& name, const std::string& data, char type = '0') {
  return header_of(name, data.size(), type) + data + std::string((512 - data.size() % 512) % 512, '\0');
}

const std::string kEnd(1024, '\0');

std::string names_of(const TarIndex& index) {
  std::string names;
  for (const auto& member : index.members) names += (names.empty() ? "" : " ") + member.name;
  return names;
}

}  // namespace

TEST_CASE("archives that were put together are read to the end, and what is none behind an end mark is said") {
  const std::string a = member_of("a", "AA") + member_of("b", std::string(600, 'B')), c = member_of("c", "CCC");
  const std::size_t first = a.size();
  for (const std::size_t zeros : {0u, 512u, 1024u, 10240u, 200u * 512u}) {
    CAPTURE(zeros);
    const std::string file = a + std::string(zeros, '\0') + c + kEnd;
    const TarIndex index = report(file);
    CHECK(index.damage.empty());
    CHECK(names_of(index) == "a b c");
    CHECK(index.members[2].header == first + zeros);
    CHECK(data_of(file, index.members[2]) == "CCC");
    CHECK(index.end == file.size() - 1024);
  }
  CHECK(names_of(report(kEnd + a + kEnd)) == "a b");
  CHECK(report(a + kEnd + std::string(100, '\0')).damage.empty());
  CHECK(names_of(report(a + kEnd + c + kEnd + a.substr(0, 1024) + kEnd)) == "a b c a");
  CHECK(contains(report(a + kEnd + "hello\n").damage,
                 "behind the end mark follow 6 bytes that are no archive, at byte " + std::to_string(first + 1024)));
  CHECK(contains(report(a + kEnd + kEnd + std::string(5000, 'x')).damage,
                 "follow 5000 bytes that are no archive, at byte " + std::to_string(first + 2048)));
  CHECK(contains(tar_refusal(a + kEnd + "hello\n"), "behind the end mark"));
  const TarIndex cut = report(a + kEnd + c);
  CHECK(names_of(cut) == "a b c");
  CHECK(contains(cut.damage, "no end mark"));
  std::string bad = a + kEnd + c + kEnd;
  bad[first + 1024 + 7] ^= 1;
  CHECK(contains(report(bad).damage, "behind the end mark follow"));
}

TEST_CASE("hard links have their target's bytes; what has none of its own costs no neighbour") {
  const std::string sparse = [] {  // GNU's old form: 512 bytes stored of 100000
    std::string header = header_of("x/s.npy", 512, 'S');
    header.replace(386, 12, "00000010000\0", 12);
    header.replace(398, 12, "00000001000\0", 12);
    header.replace(483, 12, "00000303240\0", 12);
    header.replace(148, 8, 8, ' ');
    unsigned sum = 0;
    for (const char c : header) sum += static_cast<unsigned char>(c);
    char digits[8];
    std::snprintf(digits, sizeof digits, "%06o", sum);
    header.replace(148, 7, digits, 7);
    return header + std::string(512, 's');
  }();
  const std::string file =
      member_of("x/0.cls", "one") + header_of("./x/1.cls", 0, '1', "./x/0.cls") + header_of("x", 0, '5') +
      header_of("x/2.cls", 0, '2', "0.cls") + sparse + header_of("x/f", 0, '6') + header_of("x/d", 0, '3') +
      header_of("x/3.cls", 0, '1', "x/9.cls") + member_of("x/0.cls", "two") + header_of("x/4.cls", 0, '1', "x/0.cls") +
      header_of("x/5.cls", 0, '1', "x/4.cls") + member_of("x/6.cls", "six", 'Q') + kEnd;
  const TarIndex index = report(file);
  CHECK(index.damage.empty());
  std::string all;
  for (const auto& member : index.members) all += member.name + "=" + data_of(file, member) + " ";
  CHECK(all == "x/0.cls=one ./x/1.cls=one x/0.cls=two x/4.cls=two x/5.cls=two x/6.cls=six ");
  std::string left_out;
  for (const auto& one : index.left_out) left_out += one.name + " " + one.why + "\n";
  CHECK(left_out ==
        "x/2.cls is a symbolic link, which is not followed\nx/s.npy is a sparse file, which is not read\n"
        "x/f is a device or pipe, which is not read\nx/d is a device or pipe, which is not read\n"
        "x/3.cls is a hard link to 'x/9.cls', which is not before it\n");
  CHECK(contains(report(file.substr(0, file.find("x/f", 512 * 5) - 100)).damage,
                 "at byte"));  // cut inside of the sparse one
}

TEST_CASE("what macOS keeps beside an archive is told by its name") {
  CHECK(contains(tar_refusal(std::string("\0\5\x16\7\0\2\0\0", 8) + std::string(4088, 'x')), "AppleDouble"));
}

TEST_CASE("a shard that cannot be written says why") {
  CHECK(contains(error_of(ErrorKind::data, [] { TarWriter("/nowhere/a.tar"); }), "/nowhere/a.tar"));
  CHECK(contains(error_of(ErrorKind::data,
                          [] {
                            TarWriter writer("/dev/full");
                            writer.add("a", std::string(100000, 'x'));
                            writer.finish();
                          }),
                 "No space left"));
  const TemporaryFolder folder;
  TarWriter writer(folder / "a.tar");
  CHECK(contains(error_of(ErrorKind::data, [&] { writer.add("", "x"); }), "name"));
}
