// Tables of texts: CSV as RFC 4180 has it, and JSON Lines.
#include "core/formats/text/text_table.h"

#include <doctest/doctest.h>
#include <zlib.h>

#include <functional>

#include "support/files.h"

using ditto::ErrorKind;
using namespace ditto::formats;
using ditto::test::contains;
using ditto::test::error_of;
using Strings = std::vector<std::string>;

namespace {

std::vector<Strings> rows_of(const TextTable& table) {
  std::vector<Strings> rows;
  for (size_t row = 0; row < table.rows(); ++row) {
    rows.emplace_back();
    for (size_t column = 0; column < table.width; ++column) rows.back().emplace_back(table.at(row, column));
  }
  return rows;
}

std::string refusal(const std::function<void()>& call) { return error_of(ErrorKind::data, call); }

}  // namespace

TEST_CASE("CSV: quotes, separators, line ends, empty cells and lines, columns in any order") {
  const auto table = parse_csv(
      "\xEF\xBB\xBF"
      "path,text,\"the, class\"\r\n"
      "a.png,\"one, \"\"two\"\"\r\nthree\",1\r\n"
      "\r\n"
      "b.png,,2\n"
      "\"\",plain \"quote\",\"\"",
      "t.csv", {"the, class", "path", "text"});
  CHECK(table.columns == Strings{"path", "text", "the, class"});
  CHECK(rows_of(table) ==
        std::vector<Strings>{{"1", "a.png", "one, \"two\"\r\nthree"}, {"2", "b.png", ""}, {"", "", "plain \"quote\""}});
  CHECK(table.lines == std::vector<size_t>{2, 5, 6});
  CHECK(table.bad_rows == 0);
  CHECK(rows_of(parse_csv("a;b\n1,5;2\n", "t", {"a", "b"})) == std::vector<Strings>{{"1,5", "2"}});
  CHECK(rows_of(parse_csv("a\tb\n1,5\t2;\n", "t", {"a", "b"})) == std::vector<Strings>{{"1,5", "2;"}});
  CHECK(rows_of(parse_csv("a\n\n1\n", "t", {"a"})) == std::vector<Strings>{{"1"}});
}

TEST_CASE("lines may end with CR alone; a table in UTF-16 is refused by its encoding") {
  const auto table = parse_csv("path,text\ra.png,\"one\ntwo\"\r\r\"b.png\",x\r1\r", "t.csv", {"path", "text"});
  CHECK(rows_of(table) == std::vector<Strings>{{"a.png", "one\ntwo"}, {"b.png", "x"}});
  CHECK(table.lines == std::vector<size_t>{2, 4});
  REQUIRE(table.bad.size() == 1);
  CHECK(table.bad[0].line == 5);
  // A lone CR ends no line where others do.
  CHECK(rows_of(parse_csv("a,b\n1\r2,3\n", "t", {"a", "b"})) == std::vector<Strings>{{"1\r2", "3"}});
  CHECK(rows_of(parse_csv("\"a\rb\",c\n1,3\n", "t", {"c"})) == std::vector<Strings>{{"3"}});
  CHECK(rows_of(parse_json_lines("{\"a\": 1}\r{\"a\": \"\\n\"}", "t", {"a"})) == std::vector<Strings>{{"1"}, {"\n"}});
  for (const std::string& text : {std::string("\xFF\xFE"
                                              "a\0\n\0"
                                              "1\0",
                                              8),
                                  std::string("\xFE\xFF\0a\0\n\0"
                                              "1",
                                              8),
                                  std::string("a\0\n\0"
                                              "1\0",
                                              6)})
    for (const auto& parse : {parse_csv, parse_json_lines})
      CHECK(contains(refusal([&] { parse(text, "t.csv", {"a"}); }), "t.csv: is UTF-16"));
}

TEST_CASE("CSV: a bad row is named by its line, and those around it are kept") {
  const auto table = parse_csv("a,b\n1,2\n1\n1,2,3\n\"1\"x,2\n1,\xff\n\"open,2\n3,4\n", "t.csv", {"a", "b"});
  CHECK(rows_of(table) == std::vector<Strings>{{"1", "2"}, {"3", "4"}});
  CHECK(table.lines == std::vector<size_t>{2, 8});
  REQUIRE(table.bad.size() == 5);
  CHECK(table.bad_rows == 5);
  const std::vector<std::pair<size_t, std::string>> expected{{3, "has 1 fields; the first line names 2"},
                                                             {4, "has 3 fields; the first line names 2"},
                                                             {5, "a field goes on behind its closing quote"},
                                                             {6, "\"b\" is no UTF-8"},
                                                             {7, "a quote is not closed"}};
  for (size_t i = 0; i < expected.size(); ++i) {
    CHECK(table.bad[i].line == expected[i].first);
    CHECK(table.bad[i].what == expected[i].second);
  }
}

TEST_CASE("JSON Lines: texts, numbers, what is not there, and bad rows by their line") {
  const auto table = parse_json_lines(
      "{\"path\": \"a.png\", \"class\": 3, \"score\": 0.5}\n\n{\"path\": \"b.png\", \"class\": null}\r\n[1]\n"
      "{\"path\": [\"c\"]}\n{\"path\": \n{\"path\": \"\", \"class\": true}",
      "t.jsonl", {"path", "class"});
  CHECK(rows_of(table) == std::vector<Strings>{{"a.png", "3"}, {"b.png", ""}, {"", "true"}});
  CHECK(table.lines == std::vector<size_t>{1, 3, 7});
  REQUIRE(table.bad.size() == 3);
  CHECK(table.bad[0].line == 4);
  CHECK(contains(table.bad[0].what, "is no JSON object"));
  CHECK(contains(table.bad[1].what, "\"path\": is [\"c\"]; expected a text or a number"));
  CHECK(contains(table.bad[2].what, "this is not JSON"));
}

TEST_CASE("tables are refused without rows, with a column twice, without a wanted column") {
  CHECK(contains(refusal([] { parse_csv("a,b\n1,2\n", "t.csv", {"c"}); }),
                 "t.csv: has no column \"c\"; its columns: a, b"));
  CHECK(contains(refusal([] { parse_csv("a,a\n1,2\n", "t.csv", {"a"}); }), "t.csv:1: the column \"a\" is there twice"));
  CHECK(contains(refusal([] { parse_csv("", "t.csv", {"a"}); }), "t.csv:1: the first line names no column"));
  CHECK(contains(refusal([] { parse_csv("a\n", "t.csv", {"a"}); }), "no row but its first line"));
  CHECK(contains(refusal([] { parse_json_lines("\n", "t.jsonl", {"a"}); }), "t.jsonl: the table has no row"));
  CHECK(contains(refusal([] { parse_json_lines("{\"b\": 1}", "t.jsonl", {"a"}); }),
                 "has no column \"a\"; its columns: b"));
}

TEST_CASE("tables are read by their names, unpacked where they are gzip") {
  const ditto::test::TemporaryFolder folder;
  const std::string csv = "a,b\n1,2\n", path = folder / "t.csv.gz";
  const auto file = gzopen(path.c_str(), "wb");
  gzwrite(file, csv.data(), static_cast<unsigned>(csv.size()));
  gzclose(file);
  CHECK(rows_of(read_text_table(path, {"b"})) == std::vector<Strings>{{"2"}});
  ditto::test::write_text(folder / "t.jsonl", "{\"b\": 2}\n");
  CHECK(rows_of(read_text_table(folder / "t.jsonl", {"b"})) == std::vector<Strings>{{"2"}});
  ditto::test::write_text(folder / "t.txt", csv);
  CHECK(contains(refusal([&] { read_text_table(folder / "t.txt", {"b"}); }), "does not say what table it is"));
}
