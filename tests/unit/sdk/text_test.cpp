// Foreign text as it is shown to people: one line of UTF-8 that no terminal obeys, and not by the kilobyte.
#include <ditto/text.h>

#include <doctest/doctest.h>

#include <string>

#include <ditto/error.h>

#include "core/formats/text/utf8.h"

using ditto::Error;
using ditto::ErrorKind;
using ditto::shown;

TEST_CASE("what people write is shown as it is") {
  for (const std::string text :
       {"", "a b", "blocks.0.attn.qkv.weight", "ü ñ 日本語 🙂 … “x”", R"(C:\name "x")", "it's"})
    CHECK(shown(text) == text);
}

TEST_CASE("what a terminal or an eye would obey is written out") {
  CHECK(shown("a\nerror: b") == "a\\nerror: b");
  CHECK(shown("\r\t\x1b[2J\x07\x7f") == "\\r\\t\\x1b[2J\\x07\\x7f");
  CHECK(shown(std::string_view("a\0b", 3)) == "a\\x00b");
  CHECK(shown("\u0085\u009b31m") == "\\u0085\\u009b31m");  // C1: the next line, the escape sequence
  CHECK(shown("\u202egnp.exe\u2066\u2069") == "\\u202egnp.exe\\u2066\\u2069");
  CHECK(shown("a\u2028b\u2029c") == "a\\u2028b\\u2029c");
  CHECK(shown("a\u200bb\ufeff") == "a\\u200bb\\ufeff");
  CHECK(shown("\U000E0041") == "\\U000e0041");
}

TEST_CASE("bytes that are no UTF-8 are written out, and the rest stays") {
  CHECK(shown("a\xff"
              "b") == "a\\xffb");
  CHECK(shown("\xc3") == "\\xc3");
  CHECK(shown("\xc0\xaf") == "\\xc0\\xaf");           // overlong
  CHECK(shown("\xed\xa0\x80") == "\\xed\\xa0\\x80");  // a surrogate
  CHECK(shown("\x9b[1m") == "\\x9b[1m");              // a C1 byte of an 8-bit terminal
}

TEST_CASE("of every two bytes the text shown is UTF-8, one line, and is shown as it is") {
  for (int a = 0; a < 256; ++a)
    for (int b = 0; b < 256; ++b) {
      const std::string text{static_cast<char>(a), static_cast<char>(b)};
      const auto safe = shown(text);
      REQUIRE_FALSE(ditto::formats::utf8_damage(safe));
      for (const char c : safe) REQUIRE((static_cast<unsigned char>(c) >= 0x20 && c != 0x7F));
      REQUIRE(shown(safe) == safe);
    }
}

TEST_CASE("of a long text head, tail and length are shown, cut between letters") {
  const auto text = shown(std::string(1'000'000, 'n') + "end");
  CHECK(text.size() < 260);
  CHECK(text.starts_with("nnn"));
  CHECK(text.ends_with("nend"));
  CHECK(text.find("(1000003 bytes)") != std::string::npos);
  std::string umlauts;
  for (int i = 0; i < 500; ++i) umlauts += "ü";
  for (size_t most = 0; most < 40; ++most) CHECK(shown(umlauts, most).find("\\x") == std::string::npos);
}

TEST_CASE("an error is one line, whatever names are in it, and of bounded length") {
  const std::string name = "x\nerror: forged\x1b[2J";
  const Error error(ErrorKind::data, name, name, name);
  CHECK(std::string(error.what()) == "x\\nerror: forged\\x1b[2J: x\\nerror: forged\\x1b[2J; x\\nerror: forged\\x1b[2J");
  CHECK(std::string(error.within(name).what()).starts_with("x\\nerror: forged\\x1b[2J: x\\n"));
  const std::string endless(10'000'000, 'n');
  CHECK(std::string(Error(ErrorKind::data, endless, endless, endless).within(endless).what()).size() < 7000);
}
