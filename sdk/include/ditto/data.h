// A source of samples, read by index from many threads.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

#include <ditto/batch.h>
#include <ditto/plugin.h>

namespace ditto {

class VideoDecoder;  // video_decoder.h

// One sample: its tensors without the batch dim, and where it came from.
struct Sample {
  std::map<std::string, torch::Tensor> tensors;
  std::string place;  // "digits-000000.tar:000017.png"
};

// What is known of a sample without decoding it: the shapes of its tensors, as `read` will give them. A tensor that is
// not here has a shape that only decoding tells.
using SampleInfo = std::map<std::string, std::vector<int64_t>>;

enum class SplitOf { train, validation };  // which part of the data

// The order of samples, epochs and shuffling are the host's: a source only answers "give me number i". What it holds is
// fixed when it is opened, so that a position is one number.
class DITTO_API Source {
 public:
  static constexpr const char* kKind = "data";
  static constexpr std::uint32_t kAbi = 11;
  struct Needs {
    SplitOf split;
    std::string folder;  // relative paths in the options are relative to this (the recipe's folder)
    // Only makes() will be asked, and nothing is there to be read: what the options do not say is Error(config).
    bool shapes_only = false;
    // The decoder of that name, for sources that read video files; to be called while the source is made. Throws
    // Error(plugin) where there is none. Empty: the host has none to give.
    std::function<std::shared_ptr<VideoDecoder>(const std::string& name)> decoder = {};
  };
  virtual ~Source();
  virtual int64_t size() const = 0;  // samples in one pass; > 0
  // "image" [C, H, W] in -1 … 1, "label" (with how many values it has, and their names if it knows them), "caption" …
  virtual TensorSpecs makes() const = 0;
  // Thread-safe. Throws Error(data) that names the place where a sample cannot be decoded: the host counts it, and goes
  // on.
  virtual Sample read(int64_t index) const = 0;
  // Thread-safe, and quick: no picture is decoded. Throws Error(data) as `read` does. Default: nothing is known.
  virtual SampleInfo info(int64_t /*index*/) const { return {}; }
  // What was found damaged when the data was opened, and left out ("a.tar: cut off at byte 8192; 7 samples kept"). The
  // host prints it, or stops with `loader.strict`. Default: none.
  virtual std::vector<std::string> warnings() const { return {}; }
  // What a reader of its options may not expect of it, for the host to print ("captions are not read"). No fault, so
  // that loader.strict lets it pass. Default: none.
  virtual std::vector<std::string> notes() const { return {}; }
  // What it reads, a word for each thing that other sources could read too: PATH, the file that it leads to, or PATH#N,
  // a part of one. The host refuses to learn from what validation holds out, and asks only where there is validation.
  // Default: nothing is known.
  virtual std::vector<std::string> holds() const { return {}; }
  // Names the content (sizes, names): a resume refuses other data than the run began with.
  virtual std::string fingerprint() const = 0;
};

}  // namespace ditto
