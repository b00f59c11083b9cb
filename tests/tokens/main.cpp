// ditto_tokens KIND FOLDER: of each JSON text on a line of the standard input, the ids of its pieces, on a line. KIND
// is clip, bert or sentencepiece. By --tokens N, --cleaning C and --pad WORD rows instead, as {"ids": […], "length":
// n}. By --rows N it holds the vocabulary against a table of so many rows, and by --about it says what it has read. For
// tests/integration/data/text_ids.py. An error is said, and its exit code given.
#include <cstdio>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "core/formats/tokenizers/tokenizer.h"

namespace {

using namespace ditto;
using nlohmann::json;

int tokenize(const std::vector<std::string>& arguments) {
  const std::map<std::string, decltype(&formats::open_clip_tokenizer)> kinds{
      {"clip", formats::open_clip_tokenizer},
      {"bert", formats::open_bert_tokenizer},
      {"sentencepiece", formats::open_sentencepiece_tokenizer}};
  const std::map<std::string, formats::Cleaning> cleanings{{"none", formats::Cleaning::none},
                                                           {"whitespace", formats::Cleaning::whitespace},
                                                           {"clip", formats::Cleaning::clip}};
  std::map<std::string, std::string> given;
  for (std::size_t i = 2; i + 1 < arguments.size(); i += 2) given[arguments[i]] = arguments[i + 1];
  formats::TokenOptions options;
  if (given.contains("--tokens")) options.tokens = std::stoll(given["--tokens"]);
  if (given.contains("--cleaning")) options.cleaning = cleanings.at(given["--cleaning"]);
  if (given.contains("--pad")) options.pad = given["--pad"];
  const auto tokenizer = kinds.at(arguments.at(0))(arguments.at(1), options);
  if (given.contains("--rows")) tokenizer->require_table(std::stoll(given["--rows"]), "table");
  if (given.contains("--about"))
    std::cout << json{{"fingerprint", tokenizer->fingerprint()},
                      {"vocabulary", tokenizer->vocabulary()},
                      {"begin", tokenizer->begin().value_or(-1)},
                      {"end", tokenizer->end()},
                      {"pad", tokenizer->pad()}}
              << '\n';
  std::int64_t number = 0;
  for (std::string line; std::getline(std::cin, line);) {
    const std::string where = "line " + std::to_string(++number);
    // Bytes that are no UTF-8 come as they are, behind a #.
    const auto text = line.starts_with('#') ? line.substr(1) : json::parse(line).get<std::string>();
    if (given.contains("--tokens")) {
      const auto row = tokenizer->row(text, where);
      std::cout << json{{"ids", row.ids}, {"length", row.length}} << '\n';
    } else {
      std::cout << json(tokenizer->pieces(text, where)) << '\n';
    }
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    return tokenize({arguments + 1, arguments + count});
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return error.exit_code();
  }
}
