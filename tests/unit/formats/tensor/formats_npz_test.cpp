// Arrays for NumPy: headers of format 1.0, in an uncompressed zip.
#include "core/formats/tensor/npz.h"

#include <doctest/doctest.h>

#include "support/files.h"

using namespace ditto::formats;
using ditto::ErrorKind;
using ditto::test::as_bytes;
using ditto::test::contains;
using ditto::test::error_of;
using ditto::test::read_text;
using ditto::test::TemporaryFolder;

TEST_CASE("an array's header is NumPy's of format 1.0, and its numbers begin at a multiple of 64 bytes") {
  const struct {
    NpyArray array;
    std::string text;
  } cases[] = {{{"a", "|u1", {2, 8, 8, 3}, {}}, "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 8, 8, 3), }"},
               {{"a", "<i8", {5}, {}}, "{'descr': '<i8', 'fortran_order': False, 'shape': (5,), }"},
               {{"a", "<i8", {}, {}}, "{'descr': '<i8', 'fortran_order': False, 'shape': (), }"},
               {{"a", "<f4", {50000, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1024}, {}},
                "{'descr': '<f4', 'fortran_order': False, 'shape': (50000, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1024), }"}};
  for (const auto& [array, text] : cases) {
    const auto header = npy_header(array);
    CHECK(header.substr(0, 8) == std::string("\x93NUMPY\x01\x00", 8));
    CHECK(header.size() % 64 == 0);
    CHECK(static_cast<unsigned char>(header[8]) + 256 * static_cast<unsigned char>(header[9]) == header.size() - 10);
    CHECK(header.back() == '\n');
    CHECK(header.substr(10, text.size()) == text);
    CHECK(header.find_first_not_of(' ', 10 + text.size()) == header.size() - 1);
  }
}

TEST_CASE("arrays stand uncompressed in a zip, in their order, and the same arrays make the same bytes") {
  const TemporaryFolder folder;
  const std::string pixels = "0123456789ab", classes(16, '\1');
  const std::vector<NpyArray> arrays{{"arr_0", "|u1", {1, 2, 2, 3}, as_bytes(pixels)},
                                     {"arr_1", "<i8", {2}, as_bytes(classes)}};
  write_npz(folder / "a.npz", arrays);
  const auto bytes = read_text(folder / "a.npz");
  CHECK(bytes.substr(0, 4) == "PK\3\4");
  const auto first = bytes.find(npy_header(arrays[0]) + pixels), second = bytes.find(npy_header(arrays[1]) + classes);
  CHECK(first != bytes.npos);
  CHECK(second != bytes.npos);
  CHECK(first < second);
  CHECK(bytes.find("arr_0.npy") < first);
  ditto::test::write_text(folder / "b.npz", "something that was here before");
  write_npz(folder / "b.npz", arrays);
  CHECK(read_text(folder / "b.npz") == bytes);
}

TEST_CASE("a place that cannot be written is an error with its path") {
  const TemporaryFolder folder;
  const auto path = folder / "nowhere/a.npz";
  const auto message = error_of(ErrorKind::data, [&] { write_npz(path, {{"arr_0", "|u1", {1}, as_bytes("x")}}); });
  CHECK(contains(message, path));
}
