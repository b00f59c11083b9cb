// Which tensors flow through a recipe's parts: checked before anything runs, and kept by checkpoints.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ditto/error.h>
#include <ditto/model.h>
#include <nlohmann/json_fwd.hpp>

#include "core/formats/names.h"

namespace ditto {

// What a checkpoint keeps of the data a model was made for.
struct SavedShapes {
  ModelNeeds model;
  TensorSpecs data;  // the source's
};
// Without what turns with a picture.
nlohmann::json json_of(const TensorSpecs& specs);
// Throws Error(kind) for what is no dtype, and nlohmann's own for what is no such list.
TensorSpecs specs_of(const nlohmann::json& list, const std::string& where, ErrorKind kind = ErrorKind::checkpoint);
std::string to_text(const SavedShapes& shapes);
SavedShapes saved_shapes(const std::string& text, const std::string& where);  // throws Error(checkpoint)

// An index (a class) whose values two parts of a recipe, or a run and a checkpoint, name otherwise, of as many values.
// One of which a name stands at another number comes before those that are only called otherwise.
struct OtherNames {
  std::string tensor;
  formats::NamesApart apart;
  std::string text(const std::string& of_one, const std::string& of_other) const;  // "\"label\" 0 is \"cat\" …"
};
std::optional<OtherNames> other_names(const TensorSpecs& one, const TensorSpecs& other);

// The tensors that there are, from the source on, and who made each.
class TensorFlow {
 public:
  // `who`: "data \"webdataset\"". Throws Error(config) at `where` for a name that another has made already.
  void make(const std::string& who, const std::string& where, const TensorSpecs& specs);
  // Throws Error(config) for a tensor that nobody makes, or of another dtype, number of dims or size, or an index of
  // more values, naming both sides.
  void take(const std::string& who, const std::string& where, const TensorSpecs& specs) const;
  // An encoder: what it makes, in the place of what it takes. Texts stay for those behind it. Throws as `take` and
  // `make`.
  void encode(const std::string& who, const std::string& where, const TensorSpecs& takes, const TensorSpecs& makes);
  // No encoder follows: texts that were encoded are gone, and of what was made of texts alone there is that of the
  // empty text too, where nobody makes another tensor of this name: these.
  TensorSpecs end_encoders();
  TensorSpecs specs() const;
  std::string text() const;  // "image (data \"webdataset\"), …", or "nothing"

 private:
  struct Made {
    TensorSpec spec;
    std::string by;
    bool of_texts = false;  // alone; a text itself is
    bool encoded = false;
  };
  std::vector<Made> made_;
};

}  // namespace ditto
