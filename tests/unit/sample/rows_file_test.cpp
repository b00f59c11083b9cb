// Files whose rows come in any order, and in several goes.
#include "core/sample/rows_file.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <numeric>

#include "support/files.h"

using namespace ditto;
using test::as_bytes;
using test::contains;
using test::error_of;
using test::read_text;
using test::TemporaryFolder;

namespace {

constexpr int64_t kRows = 5;
constexpr uint64_t kRowBytes = 12;

std::string row(int64_t i) { return std::string(kRowBytes, static_cast<char>('a' + i)); }

RowsFile npz(const std::string& path, const std::string& request = "0123abcd") {
  const formats::NpzLayout layout({{"arr_0", "|u1", {kRows, 2, 2, 3}, {}}}, {kRows * kRowBytes}, "request " + request);
  return {path,
          "--npz",
          kRows,
          {layout.begin(0), kRowBytes, layout.file_bytes(), [layout](uint32_t crc) { return layout.around({crc}); }},
          request};
}

void write(RowsFile& file, const std::vector<int64_t>& rows) {
  for (const auto i : rows) file.write(i, as_bytes(row(i)));
  file.note();
  file.close();
}

std::string whole(const TemporaryFolder& folder) {
  std::string rows;
  for (int64_t i = 0; i < kRows; ++i) rows += row(i);
  formats::write_npz(folder / "at_once.npz", {{"arr_0", "|u1", {kRows, 2, 2, 3}, as_bytes(rows)}});
  return rows;
}

}  // namespace

TEST_CASE("rows in any order and in two goes make the bytes of one, under their name once all are there") {
  const TemporaryFolder folder;
  const auto path = folder / "a.npz";
  {
    auto first = npz(path);
    CHECK(first.look(false) == std::vector<uint8_t>(kRows, 0));
    first.begin();
    write(first, {3, 0});
    CHECK(!std::filesystem::exists(path));
    CHECK(contains(error_of(ErrorKind::config, [&] { npz(path).look(false); }), "by another command"));
  }
  auto second = npz(path);
  CHECK(second.look(false) == std::vector<uint8_t>{1, 0, 0, 1, 0});
  second.begin();
  write(second, {4, 2, 1});
  second.finish();
  const auto rows = whole(folder), bytes = read_text(path);
  CHECK(contains(bytes, rows));
  CHECK(!std::filesystem::exists(path + ".part"));
  CHECK(!std::filesystem::exists(path + ".part.jsonl"));
  // But for its comment, with its length before it, it is what write_npz makes.
  const auto at_once = read_text(folder / "at_once.npz");
  CHECK(bytes.substr(0, at_once.size() - 2) == at_once.substr(0, at_once.size() - 2));
  CHECK(npz(path).look(false) == std::vector<uint8_t>(kRows, 1));
}

TEST_CASE("a row that another program has changed is found, in a part and in the whole") {
  const TemporaryFolder folder;
  const auto path = folder / "a.npz";
  {
    auto file = npz(path);
    file.look(false);
    file.begin();
    write(file, {0, 1, 2, 3, 4});
  }
  const auto change = [](const std::string& name) {
    auto bytes = read_text(name);
    bytes[bytes.find(row(2)) + 3] = '!';
    test::write_text(name, bytes);
  };
  const auto kept = read_text(path + ".part");
  change(path + ".part");
  CHECK(contains(error_of(ErrorKind::data, [&] { npz(path).look(false); }), "another sample 2"));
  CHECK(npz(path).look(true) == std::vector<uint8_t>(kRows, 0));
  test::write_text(path + ".part", kept);
  {
    auto file = npz(path);
    CHECK(file.look(false) == std::vector<uint8_t>(kRows, 1));
    file.begin();
    file.close();
    file.finish();
  }
  change(path);
  CHECK(contains(error_of(ErrorKind::data, [&] { npz(path).look(false); }), "another program has changed it"));
  CHECK(npz(path).look(true) == std::vector<uint8_t>(kRows, 0));
}

TEST_CASE("a file or a part of another request is refused, and replaced where that is asked for") {
  const TemporaryFolder folder;
  const auto path = folder / "a.npz";
  test::write_text(path, "mine");
  CHECK(contains(error_of(ErrorKind::config, [&] { npz(path).look(false); }), "not of this request"));
  CHECK(read_text(path) == "mine");
  std::filesystem::remove(path);
  {
    auto other = npz(path, "other");
    other.look(false);
    other.begin();
    write(other, {1});
  }
  CHECK(contains(error_of(ErrorKind::config, [&] { npz(path).look(false); }), "of another request"));
  auto file = npz(path);
  CHECK(file.look(true) == std::vector<uint8_t>(kRows, 0));
  file.begin();
  write(file, {0, 1, 2, 3});
  CHECK(contains(error_of(ErrorKind::data, [&] { file.finish(); }), "sample 4"));
}

TEST_CASE("a torn line of the list says nothing, and the next line is whole") {
  const TemporaryFolder folder;
  const auto path = folder / "list.jsonl";
  test::write_text(path, "{\"row\":1}\n{\"row\":");
  SharedLines(path).append("{\"row\":2}\n");
  std::vector<int> rows;
  CHECK(read_lines(path, [&](const nlohmann::json& one) { rows.push_back(one["row"].get<int>()); }) == 1);
  CHECK(rows == std::vector<int>{1, 2});
}
