// Section [data] of a recipe with plugin = "webdataset".
#pragma once

#include <string>
#include <vector>

#include <ditto/options.h>

#include "energon_set.h"
#include "shard_index.h"
#include "store.h"

namespace webdataset {

inline constexpr const char* kNone = "none";

struct Options {
  std::vector<std::string> shards, validation_shards;
  std::string path, split = "train", validation_split = "val";
  std::vector<std::string> image{"png", "jpg", "jpeg", "webp", "avif"};
  std::string label = "cls";
  std::string caption = "none";
  int64_t classes = 0;
  std::vector<int64_t> size;
  std::vector<std::string> names;
  int64_t channels = 3;
  std::string resize = "bilinear";
  std::vector<int64_t> latent;
  std::string text = kNone, text_key, text_name = "text";
  int64_t text_tokens = 0, text_width = 0;
  int64_t frames = 0, interval = 1, first = 0;
  std::string decoder = "ffmpeg";
  Store store;
  std::vector<std::string> notes;  // no option: what was found and may not be expected

  void read(ditto::OptionReader& option);
  // Where the recipe does not say where picture, label and caption stand, the set does. Throws Error(config) for one
  // whose samples are made in Python, unless the recipe says it.
  void take(const EnergonSet& set);
  // What classes.json in the shards' folders says, if it is there, where the recipe does not: how many classes, and
  // their names. Throws Error(data) where two of them differ, Error(config) where the recipe's names stand at other
  // numbers. What else differs is in `notes`.
  void take_classes(const std::vector<std::string>& folders);
  bool says_all_places() const { return !said_image_.empty() && !said_label_.empty() && !said_caption_.empty(); }
  // Whether data.image names tensors (.pth, .pickle) and no pictures.
  bool has_latents() const;
  // Whether it names video files.
  bool has_videos() const;
  // Throws Error(config) for a label without data.classes, and for these without a label.
  Wanted wanted() const;

 private:
  void refuse_contradictions(ditto::OptionReader& option) const;
  void compare_names(const std::vector<std::string>& theirs, const std::string& file);

  // In the recipe, and so in run.toml: empty where it leaves them open.
  std::vector<std::string> said_image_;
  bool knows_image_ = false;  // by the recipe, or by the set
  std::string said_label_, said_caption_;
};

}  // namespace webdataset
