// "Did you mean": one rule for options, ids, commands and tensors' names.
#include <doctest/doctest.h>

#include <ditto/options.h>

using ditto::nearest;

TEST_CASE("the nearest name is the one with the fewest edits, if any is near") {
  const std::vector<std::string> names{"width", "depth", "heads"};
  CHECK(nearest("widht", names) == "width");
  CHECK(nearest("head", names) == "heads");
  CHECK(nearest("wipth", names) == "width");  // one letter of it, three of "depth"
  CHECK(nearest("widen", names) == "width");
  CHECK(nearest("waves", names) == "");  // three of five letters
  CHECK(nearest("zzzzz", names) == "");
  CHECK(nearest("", {"a"}) == "");
  CHECK(nearest("ab", {"ac", "ad"}) == "ac");
  CHECK(nearest("dti", {"t5", "dit"}) == "dit");  // two letters changed places
}

TEST_CASE("long names may differ in a third of their letters, longer ones than 200 are nobody's slip") {
  CHECK(nearest("blocks.0.attn.qkv.wieght", {"blocks.0.mlp.up.weight", "blocks.0.attn.qkv.weight"}) ==
        "blocks.0.attn.qkv.weight");
  const std::string longest(200, 'a');
  CHECK(nearest(longest, {longest.substr(0, 190)}) == longest.substr(0, 190));
  CHECK(nearest(longest + "a", {longest}) == "");
}
