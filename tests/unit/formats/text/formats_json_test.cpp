// JSON is parsed strictly: no key twice, no bottomless nesting, nothing behind a NUL byte.
#include "core/formats/text/json.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "support/files.h"

using ditto::ErrorKind;
using ditto::formats::parse_json;
using ditto::test::contains;
using ditto::test::error_of;

TEST_CASE("JSON is read, and refused where it is ambiguous") {
  CHECK(parse_json(R"({"a": [1, {"b": null}], "c": {"a": 1}})", "x", ErrorKind::data).at("a").size() == 2);
  const auto refusal = [](std::string_view text) {
    return error_of(ErrorKind::checkpoint, [&] { parse_json(text, "index.json", ErrorKind::checkpoint); });
  };
  CHECK(refusal(R"({"a": 1, "a": 2})") == "index.json: the key 'a' is there twice in one object");
  CHECK(contains(refusal(R"([{"x": {"a": 1, "a": 2}}])"), "'a' is there twice"));
  for (const std::string text : {"", "{", "[1,]", "nul", "{\"a\" 1}", "1 2", "\"\xff\"", "// x\n1"})
    CHECK(contains(refusal(text), "index.json: this is not JSON"));
  CHECK(contains(refusal(std::string("1\0", 2)), "NUL"));
  CHECK(contains(refusal(std::string(100000, '[')), "deeper than 128"));
}
