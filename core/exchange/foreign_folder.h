// A folder as diffusers keeps a model: weights, and the configurations that its programs make model and schedule from.
#pragma once

#include <string>
#include <vector>

#include <ditto/exchange/foreign.h>

#include "core/checkpoint/tensor_file.h"

namespace ditto::checkpoint {

// Where weights lie, and what lies beside them that somebody could take for them.
struct FoundWeights {
  std::string file;                   // or its index
  std::vector<std::string> not_read;  // names of the same weights in another form, in its folder
};
// A file is itself. A folder's weights lie in it or, of a pipeline of diffusers, in a subfolder: in "transformer", or
// where `classes` are given in that whose config.json says one of them ("vae", "text_encoder_2", "unet"). They are what
// diffusers' and transformers' from_pretrained take alike, .safetensors before .bin, and none of a variant's
// (….fp16.safetensors). Throws Error(checkpoint) where there are none; and where two sets lie side by side of which
// those take one or the other: a file beside an index of others (diffusers takes the index, transformers the file),
// names of both projects, weights in the folder and in its "transformer", or in several transformers, or folders of one
// class. And where a config.json beside them says another class.
FoundWeights find_foreign_weights(const std::string& path, const std::vector<std::string>& classes = {});
// The file alone.
std::string foreign_weights(const std::string& path);
// For people, of weights that were found in a folder: "reads FILE, and not …". Empty: a file was named.
std::string reading_of(const std::string& path, const FoundWeights& found);

// What config.json beside a file of weights says, where there is one: sets config and config_file. Null, objects and
// lists of several kinds are left out. Returns all of its text. Throws Error(checkpoint) for one that is no JSON
// object.
std::string read_config_beside(const std::string& weights, ForeignShapes& into);

// What a pipeline's folder says of the schedule that its weights were trained with has to be what `ours` says, that of
// [scheduler] (Scheduler::foreign_config), as far as both say it, and flows are no chains: Error(config) names what is
// not.
void require_schedule(const std::string& pipeline, const ForeignConfig& ours);

// Where an export goes: `out` itself if it ends in ".safetensors", else the folder of that name.
class ExportPlace {
 public:
  struct Configs {
    ForeignConfig model, scheduler;
    std::string kept;  // the text of the config.json that the model was imported with: what `model` does not say stays
  };
  // Throws Error(config) for a folder where no model is configured: programs of that format read a file. And where a
  // configuration of another model or schedule lies in the folder: programs would read it with these weights.
  ExportPlace(const std::string& out, const Configs& configs);
  // One file, or where `most_bytes` is above 0 and they take more, files of at most that (or of one tensor) with an
  // index, as transformers and diffusers name them. Throws Error(config) where such a file or index lies there, and
  // would be read in their place.
  void write_weights(const NamedTensors& tensors, const formats::Metadata& notes, uint64_t most_bytes) const;
  void write_configs() const;
  std::string card() const;  // the file that the model's card belongs into

 private:
  struct File {
    std::string path, text;  // empty: there must be none
  };
  bool is_folder_;
  std::string out_, weights_;
  std::vector<File> configs_;
};

}  // namespace ditto::checkpoint
