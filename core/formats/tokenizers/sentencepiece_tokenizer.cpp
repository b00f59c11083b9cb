// SentencePiece (Kudo and Richardson 2018), by its own library, which normalises and cuts a text as its model says.
#include <sentencepiece_processor.h>

#include <ditto/text.h>

#include "core/formats/tokenizers/tokenizer.h"
#include "core/formats/tokenizers/vocabulary_files.h"

namespace ditto::formats {

namespace {

constexpr const char* kModel = "spiece.model";

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(const std::string& folder, const TokenOptions& options) : Tokenizer(folder, options) {
    VocabularyFiles files(folder);
    if (!files.has(kModel) && files.has("tokenizer.json"))
      throw Error(ErrorKind::config, folder,
                  "has a tokenizer.json and no spiece.model, which alone says how texts are normalised",
                  "copy spiece.model from the model's folder \"tokenizer\" beside it");
    const auto status = processor_.LoadFromSerializedProto(files.read(kModel));
    if (!status.ok())
      throw Error(ErrorKind::config, files.path(kModel),
                  "is no model of SentencePiece: " + shown(status.message(), kSentenceShown), "copy it anew");
    const auto find = [&](const std::string& word) -> std::optional<std::int64_t> {
      const int id = processor_.PieceToId(word);
      return processor_.IdToPiece(id) == word ? std::optional<std::int64_t>(id) : std::nullopt;
    };
    set_up(files, find, {{}, {"eos_token", "</s>"}, {"pad_token", "<pad>"}}, processor_.GetPieceSize());
  }

 private:
  std::vector<std::int64_t> split(const std::string& text) const override {
    std::vector<int> ids;
    const auto status = processor_.Encode(text, &ids);
    if (!status.ok()) throw Error(ErrorKind::data, shown(text), "SentencePiece cannot split it: " + status.ToString());
    return {ids.begin(), ids.end()};
  }

  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

std::unique_ptr<const Tokenizer> open_sentencepiece_tokenizer(const std::string& folder, const TokenOptions& options) {
  return std::make_unique<SentencePieceTokenizer>(folder, options);
}

}  // namespace ditto::formats
