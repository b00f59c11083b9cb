// What another project's files say of a model, beside the numbers.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <torch/types.h>

#include <ditto/options.h>

namespace ditto {

// The plain values of a configuration file of theirs (config.json), by key.
using ForeignConfig = std::map<std::string, OptionValue>;

// A foreign checkpoint's tensor as ours: names, and the shape it has there. Row blocks of a fused weight come from
// several.
struct ForeignTensor {
  std::string ours;
  std::vector<std::string> theirs;  // one; or several, put one under another along dim 0 to make ours
  std::vector<int64_t> shape;       // theirs' shape, if not ours (a convolution's weight, say); empty: the same
};
struct ForeignFormat {
  std::vector<ForeignTensor> tensors;
  // Theirs that hold the same values as another of theirs, by name (an embedder kept once a block): copy -> the one we
  // read.
  std::map<std::string, std::string> copies;
  // Written on export and checked on import, not learned (position tables).
  std::map<std::string, torch::Tensor> constants;
  // What their program makes the model from (config.json). Empty: it reads no such file.
  ForeignConfig config = {};
};

// A file of weights, before anything is made of it.
struct DITTO_API ForeignShapes {
  std::string format;                                   // "diffusers"
  std::string file;                                     // for messages
  std::map<std::string, std::vector<int64_t>> tensors;  // by their names, without the name of a set ("ema.")
  std::string config_file;                              // for messages; empty: there is none beside the file
  ForeignConfig config;

  bool has(const std::string& tensor) const { return tensors.count(tensor) != 0; }
  // These throw Error(checkpoint) that names the file: a tensor, a dim or a key that is not there, and a number that is
  // not 1 to `most`.
  int64_t size(const std::string& tensor, size_t dim, int64_t most) const;
  // Of the tensors BEFORE 0 AFTER, BEFORE 1 AFTER, …
  int64_t count(const std::string& before, const std::string& after, int64_t most) const;
  int64_t number(const std::string& key, int64_t most) const;  // of the configuration
  // Refuses a configuration that says something else than `expected`; one without the key does not.
  void expect(const std::string& key, const OptionValue& expected) const;
};

}  // namespace ditto
