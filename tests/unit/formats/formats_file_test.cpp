// Claim (failures): Files that are read by position: what cannot be read is an error, never a signal.
#include <doctest/doctest.h>

#include <sys/stat.h>
#include <unistd.h>

#include "core/formats/archive/tar.h"
#include "core/formats/file.h"
#include "core/formats/tensor/safetensors.h"
#include "support/files.h"

using namespace ditto::formats;
using ditto::ErrorKind;
using namespace ditto::test;

namespace {

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

TEST_CASE("parts of a file and of memory are read alike") {
  const TemporaryFolder folder;
  const std::string text = "0123456789";
  write_text(folder / "a", text);
  for (const auto& file : {RandomFile::open(folder / "a"), RandomFile::over(as_bytes(text), "a")}) {
    CHECK(file->size() == 10);
    CHECK(text_of(file->read(3, 4)) == "3456");
    CHECK(file->read(10, 0).empty());
    CHECK(contains(error_of(ErrorKind::data, [&] { file->read(7, 4); }), "beyond the end"));
    CHECK(contains(error_of(ErrorKind::data, [&] { file->read(11, 0); }), "beyond the end"));
    CHECK(contains(error_of(ErrorKind::data, [&] { file->read(1, UINT64_MAX, "part x"); }), "part x: "));
  }
  CHECK(read_file(folder / "a", ErrorKind::data) == text);
  CHECK(contains(error_of(ErrorKind::config, [&] { read_file(folder / "a", ErrorKind::config, 9); }),
                 "has 10 bytes; at most 9 are expected"));
}

TEST_CASE("a file that becomes shorter after it was opened is an error, whatever reads it") {
  const TemporaryFolder folder;
  write_text(folder / "a", std::string(100'000, 'x'));
  const auto file = RandomFile::open(folder / "a", ErrorKind::checkpoint);
  REQUIRE(::truncate((folder / "a").c_str(), 5) == 0);
  CHECK(text_of(file->read(0, 5)) == "xxxxx");
  for (const std::uint64_t at : {0, 5, 50'000, 99'999})
    CHECK(contains(error_of(ErrorKind::checkpoint, [&] { file->read(at, at == 0 ? 6 : 1); }), "became shorter"));

  const std::string golden = golden_format("reference.safetensors").string();
  std::filesystem::copy(golden, folder / "b");
  const auto tensors = SafetensorsReader::open(folder / "b");
  REQUIRE(::truncate((folder / "b").c_str(), 100) == 0);
  const auto error = error_of(ErrorKind::checkpoint, [&] { tensors.read(tensors.at("blocks.0.weight")); });
  CHECK_MESSAGE(contains(error, "b: tensor 'blocks.0.weight': ends early"), error);
}

TEST_CASE("what is no regular file is refused at once, a pipe without a writer too") {
  const TemporaryFolder folder;
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  for (const std::string& path : {folder / "pipe", folder.path().string(), std::string("/dev/zero")})
    CHECK(contains(error_of(ErrorKind::data, [&] { RandomFile::open(path); }), "is not a regular file"));
  CHECK(contains(error_of(ErrorKind::data, [&] { RandomFile::open(folder / "none"); }), "No such file"));
}

TEST_CASE("a written file replaces the one before as a whole, and leaves nothing beside it") {
  const TemporaryFolder folder;
  for (const auto sync : {Sync::none, Sync::fsync}) {
    write_file(folder / "a", as_bytes(sync == Sync::none ? "one" : "two"), ErrorKind::data, sync);
    CHECK(read_text(folder / "a") == (sync == Sync::none ? "one" : "two"));
  }
  CHECK(contains(error_of(ErrorKind::data, [&] { write_file(folder / "no/a", as_bytes("x"), ErrorKind::data); }),
                 "No such file"));
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}
