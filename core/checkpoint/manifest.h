// The last file of a save: what the others must be. And the small state beside the tensors.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/checkpoint/disk.h"

namespace ditto::checkpoint {

inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kIndexFile = "index.json";
inline constexpr const char* kStateFile = "state.json";
inline constexpr const char* kRecipeFile = "recipe.toml";

struct FileRecord {
  std::string name;  // a plain name in the checkpoint's folder
  uint64_t bytes = 0;
  std::vector<std::string> xxh3_128;  // of each chunk
};

struct Manifest {
  std::vector<FileRecord> files;                          // by name
  uint64_t chunk_bytes = kChunkBytes;                     // of the program that wrote it
  const FileRecord* find(const std::string& name) const;  // null: not listed
};

// The text ends with a checksum of itself, so that no byte of it can change unseen.
std::string to_json(const Manifest& manifest);
// Throws Error(checkpoint) naming `where`.
Manifest parse_manifest(std::string_view text, const std::string& where);

struct SavedState {
  int64_t step = 0, samples = 0;
  uint64_t seed = 0;
  int64_t ranks = 1;
  std::map<std::string, double> counters;
  std::map<std::string, std::string> extra;
};
// An optimizer's counters: whole numbers as such, and others so that they read back as the same doubles.
nlohmann::json to_json(const std::map<std::string, double>& counters);
std::string to_json(const SavedState& state);
SavedState parse_state(std::string_view text, const std::string& where);

}  // namespace ditto::checkpoint
