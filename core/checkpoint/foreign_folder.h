// A folder as diffusers keeps a model: weights, and the configurations that its programs make model and schedule from.
#pragma once

#include <string>

#include <ditto/foreign.h>

namespace ditto::checkpoint {

// A file is itself; a folder's weights, or their index, lie in it, or in its subfolder "transformer". Throws
// Error(checkpoint) where there are none.
std::string foreign_weights(const std::string& path);

// What config.json beside a file of weights says, where there is one: sets config and config_file. Lists, objects and
// null are left out. Throws Error(checkpoint) for one that is no JSON object.
void read_config_beside(const std::string& weights, ForeignShapes& into);

// Where an export goes: `out` itself if it ends in ".safetensors", else the folder of that name.
class ExportPlace {
 public:
  // Throws Error(config) for a folder where no model is configured: programs of that format read a file. And where a
  // configuration of another model or schedule lies in the folder: programs would read it with these weights.
  ExportPlace(const std::string& out, const ForeignConfig& model, const ForeignConfig& scheduler);
  const std::string& weights() const { return weights_; }
  void write_configs() const;

 private:
  struct File {
    std::string path, text;  // empty: there must be none
  };
  std::string weights_;
  std::vector<File> configs_;
};

}  // namespace ditto::checkpoint
