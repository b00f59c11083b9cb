// The card that lies beside exported weights: README.md in the form of Hugging Face's hub, YAML first.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ditto::report {

struct ModelCard {
  std::string run, plugin, format;
  std::string library;  // of the hub's names, "diffusers"; empty: none reads it
  std::string weights;  // "ema" or "weights"
  int64_t parameters = 0, step = 0, samples = 0;
  std::string data;                    // what the source says of itself; empty: it is not known
  std::string license;                 // an identifier of the hub's, "apache-2.0"; empty: nobody said
  std::string recipe_toml;             // of its absolute paths the last name is shown
  std::optional<std::string> picture;  // a file of samples
};
std::string to_markdown(const ModelCard& card, const std::string& picture_name);

// Writes it to `path`, and the picture beside it. A file there that no export wrote stays as it is: returns false.
// Throws Error(config) where it cannot be written.
bool write_card(const ModelCard& card, const std::string& path);

// Of a checkpoint in a run's folder, the newest sheet of samples that is not younger; none where there is none.
std::optional<std::string> sheet_of(const std::string& checkpoint, int64_t step);

}  // namespace ditto::report
