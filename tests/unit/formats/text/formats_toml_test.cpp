// Recipes as text: what is read, from where, what is refused in which words, and that writing reads back.
//
// Claim (options): Recipes, pictures, archives, safetensors and pickles that are damaged or hostile end in an error.
// Also: the tests of the other formats beside it, `hostile_files.py`, `./dev fuzz`
#include "core/formats/text/toml.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "support/files.h"

using namespace ditto::formats;
using ditto::Error;
using ditto::ErrorKind;
using ditto::test::contains;
using ditto::test::error_of;
using ditto::test::TemporaryFolder;

namespace {

std::string toml_refusal(std::string_view text) {
  return error_of(ErrorKind::config, [&] { parse_toml(text, "x.toml"); });
}

std::string toml_value_refusal(std::string_view text) {
  return error_of(ErrorKind::config, [&] { parse_toml_value(text); });
}

}  // namespace

TEST_CASE("a recipe keeps the file's order and knows where everything stands") {
  const Table table =
      parse_toml("z = 1\n[model]\nwidth = 384\n  heads = 6\n[data]\nplugin = \"webdataset\"\n", "a.toml");
  REQUIRE(table.size() == 3);
  CHECK(table.entries()[0].key == "z");
  CHECK(table.entries()[1].key == "model");
  CHECK(table.entries()[2].key == "data");
  const Node* heads = table.find_path("model.heads");
  REQUIRE(heads != nullptr);
  CHECK(*heads->as<std::int64_t>() == 6);
  CHECK(heads->source.text() == "a.toml:4:11");
  CHECK(table.find("model")->as<Table>()->entries()[1].key_source.text() == "a.toml:4:3");
  CHECK(table.find_path("model.depth") == nullptr);
  CHECK(table.find_path("z.inner") == nullptr);
}

TEST_CASE("all types of TOML but dates are read") {
  const Table table = parse_toml(
      "b = true\ni = 0x10\nd = 1e-3\ns = 'C:\\x'\nl = [1, 'a', [2.5]]\nt = {a.b = -1}\ninf = -inf\nu = "
      "\"\\u00e9\u00e9\"\n"
      "m = '''two\nlines'''\nq = \"\"\"a\\\"\"\"\"\"\n",
      "x");
  CHECK(*table.find("b")->as<bool>());
  CHECK(*table.find("i")->as<std::int64_t>() == 16);
  CHECK(*table.find("d")->as<double>() == 1e-3);
  CHECK(*table.find("s")->as<std::string>() == "C:\\x");
  CHECK(table.find("l")->as<Array>()->at(2).as<Array>()->at(0).type_name() == std::string("number"));
  CHECK(*table.find_path("t.a.b")->as<std::int64_t>() == -1);
  CHECK(*table.find("inf")->as<double>() == -std::numeric_limits<double>::infinity());
  CHECK(*table.find("u")->as<std::string>() == "éé");
  CHECK(*table.find("m")->as<std::string>() == "two\nlines");
  CHECK(*table.find("q")->as<std::string>() == "a\"\"");
}

TEST_CASE("a byte order mark, Windows line ends and an empty file are fine") {
  CHECK(*parse_toml("\xEF\xBB\xBF"
                    "a = 1\r\n# \u00e9\r\n",
                    "x")
             .find("a")
             ->as<std::int64_t>() == 1);
  CHECK(parse_toml("", "x").empty());
}

TEST_CASE("text that is not TOML is refused with its place") {
  struct Case {
    std::string_view text, place, words;
  };
  using namespace std::string_view_literals;
  const Case cases[] = {
      {"[@", "x.toml:1:2: ", "not TOML"},  // aborted the process in the parser's debug form
      {"a =", "x.toml:1:", "not TOML"},
      {"a = 1\nb = = 2", "x.toml:2:5: ", "not TOML"},
      {"a = 1\na = 2", "x.toml:2:", "redefine"},
      {"[m]\n[m]", "x.toml:2:", "not TOML"},
      {"a = \"x", "x.toml:1:", "not TOML"},
      {"a = '''x", "x.toml:1:", "not TOML"},
      {"a = [1", "x.toml:1:", "not TOML"},
      {"a = {b = 1", "x.toml:1:", "not TOML"},
      {"a = 1 2", "x.toml:1:", "not TOML"},
      {"a = 007", "x.toml:1:", "not TOML"},
      {"a = 99999999999999999999", "x.toml:1:", "64 bits"},
      {"a = tru", "x.toml:1:", "not TOML"},
      {"a = \"\\q\"", "x.toml:1:", "not TOML"},
      {"a = \"\\ud800\"", "x.toml:1:", "not TOML"},
      {"a = 1979-05-27", "x.toml:1:5: ", "date"},
      {"a = [07:32:00]", "x.toml:1:6: ", "date"},
      {"a = \"\xff\"", "x.toml:1:6: ", "not UTF-8"},
      {"ok = 1\na = \"\xc0\x80\"", "x.toml:2:6: ", "not UTF-8"},
      {"a = \"\xed\xa0\x80\"", "x.toml:1:6: ", "not UTF-8"},
      {"a = 1\n\0"sv, "x.toml:2:1: ", "control character"},
      {"a = \"\x1b\"", "x.toml:1:6: ", "control character"},
      {"# \x7f", "x.toml:1:3: ", "control character"},
      {"a = 1\rb = 2", "x.toml:1:6: ", "carriage return"},
      {"\u00e9 = 1", "x.toml:1:1: ", "not ASCII"},
      {"a = \uFEF8", "x.toml:1:5: ", "not ASCII"},  // undefined behaviour in the parser
      {"\x7f"
       "ELF",
       "x.toml:1:1: ", "control character"},
  };
  for (const Case& one : cases) {
    CAPTURE(one.text);
    const std::string message = toml_refusal(one.text);
    CHECK(message.starts_with(one.place));
    CHECK(contains(message, one.words));
  }
}

TEST_CASE("nesting is limited, not the stack's size") {
  std::string key = "a", list = "a = ", tables = "a = ";
  for (int i = 0; i < 100000; ++i) key += ".a", list += "[", tables += "{a=";
  CHECK(contains(toml_refusal(key + " = 1"), "64 parts"));
  CHECK(contains(toml_refusal("[" + key + "]"), "64 parts"));
  CHECK(toml_refusal(list) != "");
  CHECK(toml_refusal(tables) != "");
}

TEST_CASE("quotes, escapes and comments do not confuse the check of bytes") {
  const Table table = parse_toml(
      "a = \"\\\"é\" # it's \"\"\" é\nb = 'é\\' # \"\nc = \"\"\"é\\\"\"\"\"\nd = '''é'' '''\ne = \"\" # é\nf = '' # "
      "é\n",
      "x");
  CHECK(table.size() == 6);
  // Undefined behaviour in the parser as it comes.
  CHECK(*parse_toml("a = \"\"\"x\\\n\u00e9 \uFEF8\"\"\"", "x").find("a")->as<std::string>() == "x\u00e9 \uFEF8");
  CHECK(*table.find("a")->as<std::string>() == "\"é");
  CHECK(*table.find("c")->as<std::string>() == "é\"");
  CHECK(*table.find("d")->as<std::string>() == "é'' ");
}

TEST_CASE("a value from the command line is TOML, or a bare string") {
  CHECK(*parse_toml_value("0.5").as<double>() == 0.5);
  CHECK(*parse_toml_value(" 3 ").as<std::int64_t>() == 3);
  CHECK(*parse_toml_value("true").as<bool>());
  CHECK(parse_toml_value("[1, 2]").as<Array>()->size() == 2);
  CHECK(*parse_toml_value("{a = 1}").as<Table>()->find("a")->as<std::int64_t>() == 1);
  CHECK(*parse_toml_value("\"3\"").as<std::string>() == "3");
  for (const char* bare : {"dit", "S/2", "runs/a b", "2024-01-01", "007", "a#b", "5 # x", "é", "1.2.3", "v = 2"})
    CHECK(*parse_toml_value(bare).as<std::string>() == bare);
  CHECK(*parse_toml_value("").as<std::string>() == "");
  CHECK(parse_toml_value("[1, {a = 2}]").as<Array>()->at(1).source.text() == "--set");
}

TEST_CASE("a value that starts like a list, table or string but is none is refused") {
  for (const char* text : {"[1", "\"a", "{a=", "'x", "\"a\" b", "\"a\"\nb = 1", "[1]\nb = 2"}) {
    CAPTURE(text);
    CHECK(contains(toml_value_refusal(text), "--set: "));
  }
  CHECK(contains(toml_value_refusal("a\x01"), "control character"));
  CHECK(contains(toml_value_refusal("a\xff"), "not UTF-8"));
}

TEST_CASE("what is written reads back the same, doubles to the last bit") {
  Table table;
  table.set("tiny", Node{5e-324, {}});
  table.set("third", Node{1.0 / 3.0, {}});
  table.set("whole", Node{2.0, {}});
  table.set("huge", Node{1.7976931348623157e308, {}});
  table.set("minus_zero", Node{-0.0, {}});
  table.set("nan", Node{std::nan(""), {}});
  table.set("inf", Node{-std::numeric_limits<double>::infinity(), {}});
  table.set("least", Node{std::numeric_limits<std::int64_t>::min(), {}});
  table.set("text", Node{std::string("quote\" back\\ tab\t line\n bell\x07 nul\0 é", 38), {}});
  table.set("key with.dots é", Node{true, {}});
  table.set("", Node{Array{}, {}});
  Table inner;
  inner.set("list", Node{Array{Node{Table{}, {}}, Node{Array{Node{false, {}}}, {}}}, {}});
  table.set_path("a.b.c", Node{inner, {}});
  table.set_path("a.empty", Node{Table{}, {}});
  table.set("after", Node{std::int64_t{1}, {}});
  const std::string text = render_toml(table);
  CAPTURE(text);
  const Table back = parse_toml(text, "run.toml");
  CHECK(same_value(table, back));
  CHECK(std::signbit(*back.find("minus_zero")->as<double>()));
  CHECK(back.find("whole")->as<double>() != nullptr);
  CHECK(render_toml(back) == render_toml(parse_toml(render_toml(back), "again")));
}

TEST_CASE("a string that is not UTF-8 is not written") {
  Table table;
  table.set("a", Node{std::string("\xff"), {}});
  CHECK(contains(error_of(ErrorKind::config, [&] { render_toml(table); }), "UTF-8"));
}

TEST_CASE("same_value looks at values, not at order or places") {
  CHECK(same_value(parse_toml("a = 1\nb = 2", "x"), parse_toml("\nb = 2\na = 1", "y")));
  CHECK_FALSE(same_value(parse_toml("a = 1", "x"), parse_toml("a = 1.0", "x")));
  CHECK_FALSE(same_value(parse_toml("a = 1", "x"), parse_toml("a = 1\nb = 1", "x")));
  CHECK_FALSE(same_value(parse_toml("a = [1]", "x"), parse_toml("a = [1, 2]", "x")));
}

TEST_CASE("tables are set and erased by name and by path") {
  Table table = parse_toml("[model]\nwidth = 1\n", "x");
  table.set_path("model.width", Node{std::int64_t{2}, {}});
  table.set_path("ema.decay", Node{0.5, {}});
  CHECK(*table.find_path("model.width")->as<std::int64_t>() == 2);
  CHECK(*table.find_path("ema.decay")->as<double>() == 0.5);
  CHECK(error_of(ErrorKind::config, [&] {
          table.set_path("model.width.x", Node{true, {}});
        }) == "width is of type integer, and nothing can be set inside it");
  CHECK(error_of(ErrorKind::config, [&] { table.set_path("model..x", Node{true, {}}); }) != "");
  CHECK(error_of(ErrorKind::config, [&] { table.set_path("", Node{true, {}}); }) != "");
  CHECK(table.erase("model"));
  CHECK_FALSE(table.erase("model"));
}

TEST_CASE("a list of tables is written under headers, and paths go into lists by number") {
  Table table =
      parse_toml("[a]\nlist = [{x = 1, deep = [{y = {z = 2}}, {}]}, {}]\nother = [1, {x = 1}]\nnone = []\n", "x");
  const std::string text = render_toml(table);
  CHECK(text ==
        "[a]\nother = [1, { x = 1 }]\nnone = []\n\n[[a.list]]\nx = 1\n\n[[a.list.deep]]\n\n[a.list.deep.y]\nz = 2\n\n"
        "[[a.list.deep]]\n\n[[a.list]]\n");
  CHECK(same_value(parse_toml(text, "again"), table));
  CHECK(*table.find_path("a.list.0.deep.0.y.z")->as<std::int64_t>() == 2);
  CHECK(table.find_path("a.list.1")->as<Table>() != nullptr);
  for (const char* path : {"a.list.2", "a.list.x", "a.list.-1", "a.list.0x", "a.other.0.x"}) {
    CAPTURE(path);
    CHECK(table.find_path(path) == nullptr);
  }
  table.set_path("a.list.1.x", Node{std::int64_t{5}, {}});
  table.set_path("a.other.0", Node{std::int64_t{6}, {}});
  CHECK(*table.find_path("a.list.1.x")->as<std::int64_t>() == 5);
  CHECK(*table.find_path("a.other.0")->as<std::int64_t>() == 6);
  CHECK(error_of(ErrorKind::config, [&] {
          table.set_path("a.list.2.x", Node{true, {}});
        }) == "list is a list of 2 and has no \"2\"; elements are numbered from 0");
  CHECK(error_of(ErrorKind::config, [&] {
          table.set_path("a.other.0.x", Node{true, {}});
        }) == "0 is of type integer, and nothing can be set inside it");
}

TEST_CASE("a recipe that cannot be read from disk says why") {
  const TemporaryFolder folder;
  CHECK(contains(error_of(ErrorKind::config, [&] { parse_toml_file(folder / "none.toml"); }), "No such file"));
  CHECK(contains(error_of(ErrorKind::config, [&] { parse_toml_file(folder.path().string()); }), "not a regular file"));
  ditto::test::write_text(folder / "a.toml", "a = 5");
  CHECK(parse_toml_file(folder / "a.toml").find("a")->source.text() == folder / "a.toml:1:5");
}
