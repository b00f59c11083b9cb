// Prompts of files and words, and what an encoder of captions makes of them.
#include "core/sample/prompts.h"

#include <torch/types.h>

#include <doctest/doctest.h>

#include "support/files.h"

using namespace ditto;
using test::contains;
using test::TemporaryFolder;

namespace {

// Counts the letters of each caption: "text" [n, 1, 3] and nothing else.
Batch count_letters(Batch batch) {
  batch["text"] = batch.at("caption").ne(0).sum(1).to(torch::kFloat).view({-1, 1, 1}).expand({-1, 1, 3});
  return batch;
}

std::vector<std::string> texts_in(const std::string& path) {
  std::vector<std::string> all;
  for (const auto& prompt : read_prompts(path)) all.push_back(prompt.text);
  return all;
}

std::string refused_file(const std::string& path) {
  return test::error_of(ErrorKind::data, [&] { read_prompts(path); });
}

}  // namespace

TEST_CASE("prompts are a file's lines or a text") {
  const TemporaryFolder folder;
  test::write_text(folder / "prompts.txt", "a cat\n\nein Kätzchen\n");
  CHECK(texts_in(folder / "prompts.txt") == std::vector<std::string>{"a cat", "", "ein Kätzchen"});
  test::write_text(folder / "windows.txt",
                   "\xEF\xBB\xBF"
                   "a cat \r\n\r\na dog\r\n");
  CHECK(texts_in(folder / "windows.txt") == std::vector<std::string>{"a cat", "", "a dog"});
  test::write_text(folder / "mac.txt", "a cat\ra dog\r");
  CHECK(texts_in(folder / "mac.txt") == std::vector<std::string>{"a cat", "a dog"});
  test::write_text(folder / "latin.txt", "a cat\na caf\xE9\n");
  CHECK(contains(refused_file(folder / "latin.txt"), "latin.txt:2: is no UTF-8"));
  CHECK(texts_in("two dogs") == std::vector<std::string>{"two dogs"});
  CHECK(contains(refused_file("a caf\xE9"), "is no UTF-8 from byte 5 on"));
  test::write_text(folder / "empty.txt", "");
  CHECK(contains(refused_file(folder / "empty.txt"), "is empty"));
}

TEST_CASE("a text that looks like a path to a file that is not there is no prompt") {
  for (const char* text : {"words.txt", "my words.TXT", "words.jsonl", "words.json", "nothere/words", "a/b"}) {
    CAPTURE(text);
    CHECK(contains(refused_file(text), "looks like a path, and there is no such file"));
  }
  for (const char* text : {"a red/blue kite", "version 1.5", "a cat.", "a txt"}) {
    CAPTURE(text);
    CHECK(texts_in(text) == std::vector<std::string>{text});
  }
}

TEST_CASE("JSON lines are called .jsonl, in any case of letters") {
  const TemporaryFolder folder;
  const auto* lines = "{\"prompt\": \"a cat\"}\n{\"prompt\": \"a dog\"}\n";
  for (const char* name : {"a.jsonl", "a.JSONL", "a.JsonL"}) {
    test::write_text(folder / name, lines);
    CHECK(texts_in(folder / name) == std::vector<std::string>{"a cat", "a dog"});
  }
  for (const char* name : {"a.json", "a.JSON"}) {
    test::write_text(folder / name, lines);
    CHECK(contains(refused_file(folder / name), "call it .jsonl"));
  }
}

TEST_CASE("a text with a NUL is no prompt, wherever it stands") {
  const TemporaryFolder folder;
  CHECK(contains(refused_file(std::string("a\0b", 3)), "holds a NUL"));
  test::write_text(folder / "nul.txt", std::string("a cat\na\0b\n", 10));
  CHECK(contains(refused_file(folder / "nul.txt"), "nul.txt:2: is no text: byte 1 is zero"));
  for (const char* line : {R"({"prompt": "a\u0000b"})", R"({"prompt": "a", "negative": "a\u0000b"})"}) {
    test::write_text(folder / "nul.jsonl", line);
    CHECK(contains(refused_file(folder / "nul.jsonl"), "nul.jsonl:1, "));
    CHECK(contains(refused_file(folder / "nul.jsonl"), "holds a NUL"));
  }
}

TEST_CASE("JSON lines say what goes with a prompt, and nothing else") {
  const TemporaryFolder folder;
  const auto path = folder / "prompts.jsonl";
  test::write_text(path, R"({"prompt": "a cat", "negative": "blurred", "seed": 7, "size": "16x24"})"
                         "\n\n"
                         R"({"prompt": ""})"
                         "\n");
  const auto prompts = read_prompts(path);
  REQUIRE(prompts.size() == 2);
  CHECK(prompts[0].text == "a cat");
  CHECK(prompts[0].negative.value() == "blurred");
  CHECK(prompts[0].seed.value() == 7);
  CHECK(prompts[0].size.value() == "16x24");
  CHECK((prompts[1].text.empty() && !prompts[1].negative && !prompts[1].seed && !prompts[1].size));
  const std::pair<const char*, const char*> bad[] = {
      {R"({"prompt": "a", "sede": 1})", "has \"sede\"; did you mean \"seed\"?"},
      {R"({"prompt": 3})", "its \"prompt\" is no text"},
      {R"({"prompt": "a", "seed": -1})", "its \"seed\" is no whole number from 0"},
      {R"({"prompt": "a", "seed": 0.5})", "its \"seed\" is no whole number from 0"},
      {R"({"text": "a"})", "is no object with \"prompt\""},
      {R"(["a"])", "is no object with \"prompt\""}};
  for (const auto& [line, said] : bad) {
    test::write_text(path, "{\"prompt\": \"fine\"}\n" + std::string(line) + "\n");
    CHECK(contains(refused_file(path), "prompts.jsonl:2: "));
    CHECK(contains(refused_file(path), said));
  }
}

TEST_CASE("an encoder of captions makes texts of prompts, whose draws are by the ids that are given") {
  std::vector<int64_t> seen;
  const auto encoded = encode_prompts({"a cat", "", "ein Kätzchen"}, {7, 8, 9}, [&](Batch batch) {
    seen = batch.ids;
    CHECK(batch.lengths.at("caption") == std::vector<int64_t>{5, 0, 13});
    return count_letters(std::move(batch));
  });
  CHECK(seen == std::vector<int64_t>{7, 8, 9});
  CHECK(!encoded.has("caption"));
  CHECK(encoded.at("text").sizes().vec() == std::vector<int64_t>{3, 1, 3});
  CHECK(encoded.at("text")[0][0][0].item<float>() == 5);
  CHECK(encoded.at("text")[1][0][0].item<float>() == 0);
  CHECK(encoded.at("text")[2][0][0].item<float>() == 13);  // bytes
  const auto message =
      test::error_of(ErrorKind::config, [&] { encode_prompts({"a"}, {0}, [](Batch batch) { return batch; }); });
  CHECK(contains(message, "--prompts: no encoder of this recipe makes \"text\" from \"caption\""));
}
