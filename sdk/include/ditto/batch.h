// Named tensors of a number of samples: what the loader makes, encoders and objectives change, and models take.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <torch/types.h>

#include <ditto/visibility.h>

namespace ditto {

// Names used by the host and the plugins that come with it (those that the host itself offers: core/data/names.h):
//   x       what the model sees            t      its time or noise level, in the scheduler's units for the model, [B];
//                                                 in host memory, as layers make features of it there (TimeEmbed)
//   clean   x_0, before any noise          noise  eps, as clean             time  the schedule's own time, double [B]
//   x_t     alpha clean + sigma noise: x is c_in x_t
//   image   pixels, before an encoder      caption           UTF-8, uint8 [B, S], in host memory: see texts_of
//   label   class, int64 [B]               text, text_mask   [B, S, E] and bool [B, S]; text_pooled [B, E]
//   text_empty, text_empty_mask, text_pooled_empty   the same of the empty text: one for all samples, expanded
//   time_u  of a validation: where in the training distribution of times, double [B]
//   drop_condition   bool [B]: this sample's condition is replaced by the null condition
// A cascade's low-resolution picture, or a precached embedding, is just another name.
class DITTO_API Batch {
 public:
  std::map<std::string, torch::Tensor> tensors;  // every one has the samples along dim 0
  std::vector<int64_t> ids;     // each sample's place in the run's global order: the key of all its randomness
  std::vector<double> weights;  // 1; 0 for a sample that could not be decoded and keeps its place empty
  // Of a tensor whose samples are padded along dim 1, a text: how many places of each sample count, up to the last that
  // its mask shows; host numbers, so that nobody has to read a device for them. A name that is not here: not known. Who
  // puts another tensor into `tensors` itself erases them.
  std::map<std::string, std::vector<int64_t>> lengths;
  // Samples of several sizes: a batch of its own for each size, one after another; `tensors` is then empty, and ids and
  // weights are those of all. Models and objectives are called with one part at a time, and never see a batch of parts.
  std::vector<Batch> parts;

  int64_t size() const { return static_cast<int64_t>(ids.size()); }
  bool has(const std::string& name) const { return tensors.count(name) != 0; }
  const torch::Tensor& at(const std::string& name) const;  // throws Error(shape) that lists what there is
  // To be written: what was known of its lengths is forgotten.
  torch::Tensor& operator[](const std::string& name) {
    lengths.erase(name);
    return tensors[name];
  }

  Batch slice(int64_t begin, int64_t end) const;  // samples [begin, end); tensors are views; not of parts
  Batch to(torch::Device device) const;           // in one copy; texts (uint8 [B, S]) stay where they are

  // Batches as parts of one; a single one as it is.
  static Batch of_parts(std::vector<Batch> parts);
  // The parts, or this batch itself.
  const Batch* begin() const { return parts.empty() ? this : parts.data(); }
  const Batch* end() const { return parts.empty() ? this + 1 : parts.data() + parts.size(); }
  // This batch with every part (or itself) changed; a part keeps its samples.
  Batch changed(const std::function<Batch(Batch)>& change) &&;
};

// What a network hands out, by name: "prediction", and what was asked for besides. Of a batch of parts, each part's has
// the part's number before it: "1/prediction".
using Outputs = std::map<std::string, torch::Tensor>;
DITTO_API std::string of_part_name(size_t part, const std::string& name);
DITTO_API Outputs of_part(const Outputs& all, const Batch& batch, size_t part);  // without the number

// One tensor that a component takes or makes: by these the parts of a recipe are put together before anything runs.
struct TensorSpec {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  // Of one sample. -1: any length of this dim, padded to the longest of a batch; kOwnSide: the sample's own, by which
  // samples are put together (Source::info tells it without reading).
  std::vector<int64_t> shape;
  std::string range;                    // "-1 … 1", "0 … 999": for people
  int64_t values = 0;                   // of an index (a class, a token): it is 0 … values - 1; 0: no index, or any
  std::vector<std::string> names = {};  // of the values, where its maker knows them; as many, or none
  // A picture of what "image" shows, pixel by pixel (an outline, a depth): its last dim is left to right, and it is
  // mirrored where "image" is.
  bool turns_with_image = false;
};
using TensorSpecs = std::vector<TensorSpec>;
// The shape of what takes a tensor of any number of dims.
struct AnyShape {
  operator std::vector<int64_t>() const { return {-2}; }
  friend bool operator==(const std::vector<int64_t>& shape, AnyShape) { return shape.size() == 1 && shape[0] == -2; }
};
inline constexpr AnyShape kAnyShape;
inline constexpr int64_t kOwnSide = -3;
// Of texts: UTF-8, uint8 [S] of any length. Of a batch they are [B, S], filled up with NULs, and lie in host memory, as
// whoever reads them (a tokenizer) does it there.
DITTO_API bool is_text(const TensorSpec& spec);
// Each sample's, up to its first NUL. Throws Error(plugin) for a tensor that is no such text, or lies on a device.
DITTO_API std::vector<std::string> texts_of(const torch::Tensor& text_BS);
DITTO_API const TensorSpec* find(const TensorSpecs& specs, const std::string& name);  // null: there is none
DITTO_API std::string to_text(const TensorSpec& spec);  // "\"label\" Long [] of 0 … 9", for messages

}  // namespace ditto
