// Claim (sampling): Every sample has a file of its own, below the folder that was asked for.
#include "core/sample/file_names.h"

#include <doctest/doctest.h>

#include "support/files.h"

using namespace ditto;
using test::contains;
using Names = std::vector<std::string>;

namespace {

std::string name_refusal(const std::string& pattern, const std::vector<int64_t>& seeds = {1, 2},
                         const std::vector<int64_t>& classes = {}) {
  return test::error_of(ErrorKind::config, [&] { file_names(pattern, ".png", seeds, classes, {"grid.png"}); });
}

}  // namespace

TEST_CASE("a seed is a name, and a number is added where it comes again") {
  CHECK(file_names("", ".png", {3, 5, 3, 3}, {}) == Names{"000003.png", "000005.png", "000003-1.png", "000003-2.png"});
  CHECK(file_names("", ".webp", {1234567}, {}) == Names{"1234567.webp"});
}

TEST_CASE("a pattern names seeds, places and classes, and may make folders") {
  CHECK(file_names("{class}/{seed}", ".png", {3, 3}, {7, 8}) == Names{"000007/000003.png", "000008/000003.png"});
  CHECK(file_names("x-{index}.png", ".png", {3, 3}, {}) == Names{"x-000000.png", "x-000001.png"});
  CHECK(file_names("one", ".png", {3}, {}) == Names{"one.png"});
  CHECK(file_names("./a//{seed}", ".png", {3}, {}) == Names{"a/000003.png"});
}

TEST_CASE("names that are alike, say nothing, or leave the folder are refused") {
  CHECK(contains(name_refusal("{seed}", {4, 2, 4}), "samples 0 and 2 both 000004.png"));
  CHECK(contains(name_refusal("{seed}", {4, 2, 4}), "add {index}"));
  CHECK(contains(name_refusal("all"), "samples 0 and 1 both all.png"));
  CHECK(contains(name_refusal("{class}-{seed}"), "these samples have no classes"));
  for (const char* pattern : {"{sed}", "{seed", "{}", "{{seed}}"})
    CHECK(contains(name_refusal(pattern), "means nothing"));
  for (const char* pattern : {"/tmp/{seed}", "../{seed}", "a/../../{seed}", "{seed}/", "a/."})
    CHECK_MESSAGE(contains(name_refusal(pattern), "does not name files below --out"), pattern);
  CHECK(contains(name_refusal("grid", {1}), "another file of this folder"));
}
