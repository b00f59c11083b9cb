// TensorBoard files: what is written reads back, files of one folder sort in time, damage is found.
#include "core/formats/tensorboard/events.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "core/formats/tensorboard/tfrecord.h"
#include "support/files.h"

using namespace ditto::formats;
using Kind = EventRecord::Kind;
using ditto::ErrorKind;
using ditto::test::as_bytes;
using ditto::test::contains;
using ditto::test::error_of;
using ditto::test::read_text;
using ditto::test::TemporaryFolder;
using ditto::test::write_text;

TEST_CASE("the checksum is the CRC-32C of RFC 3720, masked") {
  // RFC 3720 B.4: 32 bytes of zeros have 0x8A9136AA.
  const std::uint32_t crc = 0x8A9136AA;
  CHECK(masked_crc32c(std::string(32, '\0')) == ((crc >> 15 | crc << 17) + 0xA282EAD8u));
}

TEST_CASE("scalars, pictures and texts read back") {
  const TemporaryFolder folder;
  EventWriter writer(folder.path().string());
  writer.scalar("loss", 3, 0.1);
  const std::string png("\x89PNG\0data", 9);
  writer.image("samples", 4, 8, 6, 3, as_bytes(png));
  writer.text("recipe", 0, "# run\n```toml\na = 1\n```");
  writer.flush();
  const EventFile file = read_events(writer.path());
  CHECK(file.damage.empty());
  REQUIRE(file.records.size() == 5);
  CHECK(file.records[0].kind == Kind::version);
  CHECK(file.records[0].bytes == "brain.Event:2");
  CHECK(file.records[1].kind == Kind::session_start);
  CHECK(file.records[2].kind == Kind::scalar);
  CHECK(file.records[2].tag == "loss");
  CHECK(file.records[2].step == 3);
  CHECK(file.records[2].scalar == 0.1f);
  CHECK(file.records[2].wall_time > 1.7e9);
  CHECK(file.records[3].kind == Kind::image);
  CHECK(file.records[3].bytes == png);
  CHECK(file.records[3].width == 8);
  CHECK(file.records[3].height == 6);
  CHECK(file.records[4].kind == Kind::text);
  CHECK(file.records[4].bytes == "# run\n```toml\na = 1\n```");
}

TEST_CASE("a resumed run's file comes after the older ones and says which steps it writes again") {
  const TemporaryFolder folder;
  std::string last;
  for (const std::int64_t first_step : {0, 50, 100}) {
    const EventWriter writer(folder.path().string(), first_step);
    CHECK(writer.path() > last);
    last = writer.path();
    const EventFile file = read_events(last);
    REQUIRE(file.records.size() == 2);
    CHECK(file.records[1].kind == Kind::session_start);
    CHECK(file.records[1].step == first_step);
  }
  CHECK(contains(last, "/events.out.tfevents."));
}

TEST_CASE("a torn or damaged file gives the records before the damage") {
  const TemporaryFolder folder;
  EventWriter writer(folder.path().string());
  for (int step = 0; step < 3; ++step) writer.scalar("loss", step, step);
  writer.flush();
  const std::string whole = read_text(writer.path());
  const std::string path = folder / "damaged";
  std::size_t cuts = 0;
  for (std::size_t length = 0; length < whole.size(); ++length) {
    write_text(path, std::string_view(whole).substr(0, length));
    const EventFile file = read_events(path);
    CHECK(file.records.size() < 5);
    cuts += file.damage.empty();
  }
  CHECK(cuts == 5);  // only between records: nothing is wrong with those
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    write_text(path, flipped);
    CHECK(read_events(path).damage != "");
  }
  write_text(path, tfrecord("\xff\xff\xff"));
  CHECK(contains(read_events(path).damage, "no event message at byte 0"));
}

TEST_CASE("a folder that is not there is an error") {
  CHECK(contains(error_of(ErrorKind::data, [] { EventWriter("/nowhere/run"); }), "No such file"));
  CHECK(error_of(ErrorKind::data, [] { read_events("/nowhere/events"); }) != "");
}
