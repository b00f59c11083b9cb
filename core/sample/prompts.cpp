#include "core/sample/prompts.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <limits>
#include <span>
#include <sstream>

#include <fmt/format.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <ditto/error.h>
#include <ditto/options.h>
#include <ditto/text.h>

#include "core/checkpoint/disk.h"
#include "core/data/names.h"
#include "core/formats/file.h"
#include "core/formats/text/json.h"
#include "core/formats/text/utf8.h"

namespace ditto {

using torch::Tensor;

namespace {

constexpr uint64_t kPromptBytes = uint64_t{64} << 20;
constexpr const char* kKeys[] = {"prompt", "negative", "seed", "size"};
constexpr const char *kLines = ".txt", *kJsonLines = ".jsonl", *kJson = ".json";

// In small letters.
std::string extension_of(const std::string& file) {
  auto extension = std::filesystem::path(file).extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return extension;
}

// A text that somebody meant as a path.
bool is_like_path(const std::string& text) {
  const auto extension = extension_of(text);
  return extension == kLines || extension == kJsonLines || extension == kJson ||
         (text.find('/') != text.npos && text.find_first_of(" \t\r\n") == text.npos);
}

void require_no_nul(const std::string& text, const std::string& where) {
  if (text.find('\0') != text.npos)
    throw Error(ErrorKind::data, where, "holds a NUL, at which a text ends", "leave it out");
}

Prompt prompt_of_words(const std::string& text) {
  const auto where = "--prompts " + shown(text);
  if (is_like_path(text))
    throw Error(ErrorKind::data, where, "looks like a path, and there is no such file",
                "correct it; what is meant as a text stands in a file, as a line");
  if (const auto damage = formats::utf8_damage(text))
    throw Error(ErrorKind::data, where, fmt::format("is no UTF-8 from byte {} on", *damage), "write it in UTF-8");
  require_no_nul(text, where);
  return {text, {}, {}, {}};
}

[[noreturn]] void refuse_line(const std::string& where, const std::string& what) {
  throw Error(
      ErrorKind::data, where, what,
      R"(write an object a line, as {"prompt": "a red apple", "negative": "blurred", "seed": 7, "size": "32x48"})");
}

Prompt prompt_of(const std::string& line, const std::string& where) {
  const auto json = formats::parse_json(line, where, ErrorKind::data);
  if (!json.is_object() || !json.contains("prompt")) refuse_line(where, "is no object with \"prompt\"");
  const auto text = [&](const char* key) {
    if (!json.at(key).is_string()) refuse_line(where, fmt::format("its \"{}\" is no text", key));
    auto said = json.at(key).get<std::string>();
    require_no_nul(said, where + ", \"" + key + "\"");
    return said;
  };
  for (const auto& [key, value] : json.items())
    if (std::find(std::begin(kKeys), std::end(kKeys), key) == std::end(kKeys)) {
      const auto near = nearest(key, {std::begin(kKeys), std::end(kKeys)});
      refuse_line(where, "has \"" + shown(key) + "\"" + (near.empty() ? "" : "; did you mean \"" + near + "\"?"));
    }
  Prompt prompt{text("prompt"), {}, {}, {}};
  if (json.contains("negative")) prompt.negative = text("negative");
  if (json.contains("size")) prompt.size = text("size");
  if (json.contains("seed")) {
    if (!json["seed"].is_number_integer() || json["seed"] < 0 || json["seed"] > std::numeric_limits<int64_t>::max())
      refuse_line(where, "its \"seed\" is no whole number from 0");
    prompt.seed = json["seed"].get<int64_t>();
  }
  return prompt;
}

}  // namespace

std::vector<Prompt> read_prompts(const std::string& file_or_text) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file_or_text, error)) return {prompt_of_words(file_or_text)};
  const auto extension = extension_of(file_or_text);
  if (extension == kJson)
    throw Error(
        ErrorKind::data, file_or_text, "is called as one JSON text is, and prompts are an object a line",
        fmt::format("call it {0}, if it has an object a line, or {1}, if it has a text a line", kJsonLines, kLines));
  const bool is_json = extension == kJsonLines;
  std::vector<Prompt> prompts;
  std::istringstream lines(
      formats::with_plain_ends(formats::without_mark(formats::read_file(file_or_text, ErrorKind::data, kPromptBytes))));
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto where = file_or_text + ":" + std::to_string(++number);
    auto text = formats::plain_text(line, where);
    if (!is_json)
      prompts.push_back({std::move(text), {}, {}, {}});
    else if (!text.empty())
      prompts.push_back(prompt_of(text, where));
  }
  if (prompts.empty()) throw Error(ErrorKind::data, file_or_text, "is empty", "write one prompt a line");
  return prompts;
}

TensorSpecs made_of_prompts(const Networks& networks) {
  TensorSpecs made;
  for (const auto& spec : networks.conditions())
    if (find(networks.made_of_texts(), spec.name)) made.push_back(spec);
  return made;
}

namespace {

Batch captions_of(const std::vector<std::string>& prompts, std::vector<int64_t> ids) {
  size_t longest = 1;
  for (const auto& prompt : prompts) longest = std::max(longest, prompt.size());
  const auto count = static_cast<int64_t>(prompts.size());
  auto bytes = torch::zeros({count, static_cast<int64_t>(longest)}, torch::kByte);
  for (int64_t i = 0; i < count; ++i) {
    const auto& prompt = prompts[static_cast<size_t>(i)];
    std::copy(prompt.begin(), prompt.end(), bytes[i].data_ptr<uint8_t>());
  }
  Batch batch;
  batch.ids = std::move(ids);
  batch.weights.assign(prompts.size(), 1);
  batch[names::kCaption] = bytes;
  for (const auto& prompt : prompts) batch.lengths[names::kCaption].push_back(static_cast<int64_t>(prompt.size()));
  return batch;
}

Batch without_captions(Batch batch) {
  batch.tensors.erase(names::kCaption);
  if (batch.tensors.empty())
    throw Error(
        ErrorKind::config, "--prompts",
        std::string("no encoder of this recipe makes \"") + names::kText + "\" from \"" + names::kCaption + "\"",
        "encode them beforehand, and give the embeddings in --condition FILE.safetensors");
  return batch;
}

// The one sample of this batch, once for each id.
Batch repeated(const Batch& one, const std::vector<int64_t>& ids) {
  Batch many;
  many.ids = ids;
  many.weights.assign(ids.size(), 1);
  for (const auto& [name, tensor] : one.tensors) {
    auto shape = tensor.sizes().vec();
    shape[0] = many.size();
    many[name] = tensor.expand(shape).contiguous();
  }
  for (const auto& [name, lengths] : one.lengths) many.lengths[name].assign(ids.size(), lengths.at(0));
  return many;
}

}  // namespace

Batch encode_prompts(const std::vector<std::string>& prompts, std::vector<int64_t> ids,
                     const std::function<Batch(Batch)>& encode) {
  return without_captions(encode(captions_of(prompts, std::move(ids))));
}

namespace {

bool any_of_texts(const TensorSpecs& makes, const TensorSpecs& of_texts) {
  return std::any_of(makes.begin(), makes.end(), [&](const auto& spec) { return find(of_texts, spec.name); });
}

}  // namespace

Batch EncodedPrompts::encoded(int64_t first, const std::vector<int64_t>& ids) {
  if (texts_.size() > 1) {
    const auto begin = texts_.begin() + first;
    return encode_prompts({begin, begin + static_cast<int64_t>(ids.size())}, ids, [&](Batch given) {
      return networks_.encode_given({std::move(given), {}});
    });
  }
  if (!of_all_) of_all_ = networks_.precompute_given(captions_of(texts_, {ids.front()}));
  return without_captions(networks_.encode_given({repeated(of_all_->batch, ids), of_all_->by}));
}

EncodedPrompts::EncodedPrompts(Networks& networks, const std::vector<std::string>& texts,
                               const std::vector<int64_t>& seeds, KeptTexts* kept)
    : networks_(networks), texts_(texts), seeds_(seeds), kept_(kept) {
  if (!kept_) return;
  std::ostringstream of;
  // What an encoder makes of another's texts is that one's too, from the last of them back.
  auto wanted = networks.made_of_texts();
  for (auto at = networks.encoders.rbegin(); at != networks.encoders.rend(); ++at) {
    const auto& encoder = **at;
    if (!any_of_texts(encoder.encoder->makes(), wanted)) continue;
    // Ranks with other samples encode together: one that found its texts would leave the others waiting.
    if (encoder.in_step()) kept_ = nullptr;
    of << encoder.key() << ' ' << c10::toString(encoder.ctx->compute) << '\n';
    for (auto& spec : encoder.encoder->takes()) wanted.push_back(spec);
  }
  for (const auto& text : texts) of << text.size() << ' ' << text << '\n';
  for (const auto seed : seeds) of << seed << ' ';
  const auto all = of.str();
  key_ = checkpoint::checksum(std::as_bytes(std::span(all)));
}

// What was made of texts [first, first + count); what is kept is on the CPU.
NamedTensors EncodedPrompts::made(int64_t first, int64_t count) {
  const auto begin = seeds_.begin() + first;
  NamedTensors all;
  for (const auto& [name, tensor] : encoded(first, {begin, begin + count}).tensors)
    if (find(networks_.made_of_texts(), name))
      all[name] = kept_ ? tensor.cpu() : tensor;  // the others are of the empty text
  return all;
}

void EncodedPrompts::add_to(Batch& batch, int64_t first) {
  const auto& ctx = *networks_.main->ctx;
  const auto count = batch.size(), total = static_cast<int64_t>(seeds_.size());
  const auto encode = [this](int64_t begin, int64_t size) { return made(begin, size); };
  const auto all = kept_ ? kept_->rows(key_, first, count, total, encode) : encode(first, count);
  for (const auto& [name, tensor] : all) {
    if (!tensor.is_floating_point())
      batch.tensors.emplace(name, tensor.to(ctx.device));
    else
      batch.tensors.emplace(
          name, tensor.to(ctx.device, ctx.compute == torch::kDouble ? torch::kDouble
                                                                    : find(networks_.made_of_texts(), name)->dtype));
  }
}

}  // namespace ditto
