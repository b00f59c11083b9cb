// What another project's files say of a model, beside the numbers.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <torch/types.h>

#include <ditto/options.h>

namespace ditto {

// The values of a configuration file of theirs (config.json) by key: plain ones, and lists of one kind of them. What
// else is in it (null, objects, lists of lists) is no part of this; an import keeps it, for the next export.
using ForeignConfig = std::map<std::string, OptionValue>;

// A foreign checkpoint's tensor as ours: names, and the shape it has there. Row blocks of a fused weight come from
// several, and several of ours may be rows of one that is fused there.
struct ForeignTensor {
  std::string ours;
  std::vector<std::string> theirs;  // one; or several of one shape, put one under another along dim 0 to make ours
  std::vector<int64_t> shape;       // of each of theirs, if not ours (a convolution's weight, say); empty: the same
  // Row i of ours (all of it beside dim 0) is row rows[i] of theirs, put one under another: shift and scale that are
  // swapped there, rotary pairs that lie interleaved there, one layer's part of a fused weight. Each row of theirs is
  // one of ours' once, over all that name it. Empty: as they come.
  std::vector<int64_t> rows = {};
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
  // What older files of theirs call a tensor, by today's name. Read where today's is not there; never written.
  std::map<std::string, std::string> former = {};
  // Before every name in a file that is written ("model.diffusion_model."); files are read with it and without.
  std::string prefix = {};
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
  // A list of `count` numbers there, as of a patch's sides.
  std::vector<int64_t> numbers(const std::string& key, size_t count, int64_t most) const;
  // Refuses a configuration that says something else than `expected`; one without the key, or with null, does not. An
  // integer is the real number of its value.
  void expect(const std::string& key, const OptionValue& expected) const;
};

}  // namespace ditto
