// What samples are asked for by in words.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/network/networks.h"
#include "core/sample/kept_texts.h"

namespace ditto {

// A line of a file of prompts. What it does not say is asked for otherwise.
struct Prompt {
  std::string text;
  std::optional<std::string> negative, size;  // size as --size takes it: "32x48"
  std::optional<int64_t> seed;
};

// A file's, of this name: a text a line; or, where its name ends with .jsonl or .JSONL, a JSON object a line, with
// "prompt" and any of "negative", "seed" and "size". Where there is no such file, the text itself. Throws Error(data)
// for a file without text or called .json, for a text that looks like a path, for what is no UTF-8 or holds a NUL, and
// for a line of other keys or types.
std::vector<Prompt> read_prompts(const std::string& file_or_text);

// Of what a model takes, that which the encoders make of texts alone.
TensorSpecs made_of_prompts(const Networks& networks);

// What `encode` makes of these as "caption", whose draws are by these ids. Throws Error(config) where it makes nothing.
Batch encode_prompts(const std::vector<std::string>& prompts, std::vector<int64_t> ids,
                     const std::function<Batch(Batch)>& encode);

// The texts of many samples, or one for all: encoded some at a time, as they are asked for, so that no more than those
// are in memory. Draws are by the samples' seeds; of one for all, what draws nothing is encoded once.
class EncodedPrompts {
 public:
  // `seeds`: of all samples. `kept`: where what was made of texts is looked for and left; null, or of
  // encoders for which ranks with other samples compute together: it is made.
  EncodedPrompts(Networks& networks, const std::vector<std::string>& texts, const std::vector<int64_t>& seeds,
                 KeptTexts* kept);
  // Adds what was made of texts [first, first + ids.size()), on the model's device and in its precision, to a batch of
  // so many samples that does not have it. Of ranks that encode together, by all.
  void add_to(Batch& batch, int64_t first);

 private:
  Batch encoded(int64_t first, const std::vector<int64_t>& ids);
  NamedTensors made(int64_t first, int64_t count);
  Networks& networks_;
  const std::vector<std::string>& texts_;
  const std::vector<int64_t>& seeds_;
  KeptTexts* kept_;
  std::string key_;  // of what is kept
  std::optional<Networks::Precomputed> of_all_;
};

}  // namespace ditto
