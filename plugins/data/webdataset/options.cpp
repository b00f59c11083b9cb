#include "options.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include <ditto/error.h>
#include <ditto/formats/file.h>
#include <ditto/formats/json.h>
#include <ditto/formats/limits.h>
#include <ditto/sizes.h>
#include <ditto/text.h>

namespace webdataset {

using ditto::Error;
using ditto::ErrorKind;
namespace formats = ditto::formats;

namespace {

void refuse(const ditto::OptionReader& option, const std::string& name, const std::string& value) {
  try {
    TextPlace::parse(value);
  } catch (const std::invalid_argument& error) {
    option.reject(name, std::string("= ") + error.what(),
                  "write \"cls\", \"json:field\", \"json[field][0]\" or \"none\"");
  }
}

}  // namespace

void Options::read(ditto::OptionReader& option) {
  option("shards", shards, "tar files to train on: paths, globs or braces, relative to the recipe's folder").place();
  option("validation_shards", validation_shards, "tar files held out, named alike").place();
  option("path", path, "instead of shards: a folder prepared by `energon prepare` or `ditto data prepare`").place();
  option("split", split, "with data.path: the part of the set to train on");
  option("validation_split", validation_split, "with data.path: the part held out");
  option("image", image, "extensions of a sample's picture; the first that is there is taken");
  image_given_ = option.declared().back().given;
  option(
      "label", label,
      "where the class stands: \"cls\" (a member), \"json:label\" (a field of one), or \"none\"; with data.path what "
      "the set says, unless it is given");
  label_given_ = option.declared().back().given;
  option("caption", caption,
         "where the caption stands: \"txt\", \"json:caption\", or \"none\"; with data.path likewise");
  caption_given_ = option.declared().back().given;
  option("classes", classes,
         "number of classes; labels are 0 to classes - 1; 0: as many as classes.json beside the shards names")
      .between(0, ditto::most::kClasses);
  option("names", names, "the classes' names, in the order of their labels: as many as data.classes, or none");
  option("size", size, "[height, width] to crop (centre) and resize to; empty: all pictures must be of one size");
  option("resize", resize,
         "with size: \"bilinear\" cuts out the middle and brings it to that size; \"bicubic\" is ADM's way: boxes "
         "halve the picture, a "
         "bicubic filter brings it to that size, and the middle is cut out")
      .one_of({"bilinear", "bicubic"});
  option("channels", channels, "3 (red, green, blue) or 1 (grey); pictures are converted").one_of({1, 3});
  if (!size.empty() &&
      (size.size() != 2 || size[0] < 1 || size[1] < 1 || std::max(size[0], size[1]) > ditto::most::kSide))
    option.reject("size", "is " + ditto::to_text(ditto::OptionValue(size)),
                  "expected [height, width], each at most " + std::to_string(ditto::most::kSide) + ", or []");
  if (!names.empty() && static_cast<int64_t>(names.size()) != classes)
    option.reject("names",
                  "names " + std::to_string(names.size()) + " classes, and data.classes is " + std::to_string(classes),
                  "name each of them once, or none");
  if (image.empty()) option.reject("image", "is empty", "name at least one extension, such as \"png\"");
  if (!path.empty() && !(shards.empty() && validation_shards.empty()))
    option.reject("path", "stands beside data.shards", "name the folder, or the shards");
  if (path.empty() && (split != "train" || validation_split != "val"))
    option.reject(split != "train" ? "split" : "validation_split", "is of a prepared set, and data.path names none",
                  "set data.path to the folder that holds .nv-meta");
  refuse(option, "label", label);
  refuse(option, "caption", caption);
}

void Options::take_classes(const std::string& folder) {
  const auto file = (std::filesystem::path(folder) / "classes.json").string();
  if (label != "cls" || !names.empty() || !std::filesystem::exists(file)) return;
  const auto list = formats::parse_json(formats::read_file(file, ErrorKind::data, formats::limits::kRecipeBytes), file,
                                        ErrorKind::data);
  if (!list.is_array() || !std::all_of(list.begin(), list.end(), [](const auto& name) { return name.is_string(); }))
    throw Error(ErrorKind::data, file, "is no list of names", "correct it, or set data.classes and data.names");
  if (classes == 0) classes = static_cast<int64_t>(list.size());
  if (classes == static_cast<int64_t>(list.size())) names = list.get<std::vector<std::string>>();
}

void Options::take(const EnergonSet& set) {
  if (!set.made_by.empty()) {
    if (image_given_) return;
    throw Error(ErrorKind::config, set.folder,
                "its samples are made by " + ditto::shown(set.made_by, 120) + ", which is not run here",
                "say in the recipe where they stand: data.image, data.label and data.caption");
  }
  const auto field = [&](const std::string& name) {
    const auto it = set.field_map.find(name);
    return it == set.field_map.end() ? std::string("none") : it->second;
  };
  const auto check = [&](const std::string& name) {
    try {
      return TextPlace::parse(field(name));
    } catch (const std::invalid_argument& error) {
      throw Error(ErrorKind::data, set.folder, "its field_map." + name + " is wrong: " + error.what(),
                  "say in the recipe where it stands: data." + name);
    }
  };
  if (!image_given_) {
    const auto places = check("image");
    if (!places.wanted())
      throw Error(ErrorKind::config, set.folder,
                  "its samples (" + ditto::shown(set.sample_type, 120) + ") have no picture in their field_map",
                  "say in the recipe where it stands: data.image");
    image.clear();
    for (const auto& place : places.any_of) {
      if (!place.path.empty())
        throw Error(ErrorKind::config, set.folder, "its pictures stand inside of a JSON text, by field_map.image",
                    "say in the recipe where files of pictures stand: data.image");
      image.push_back(place.extension);
    }
  }
  if (!label_given_) {
    check("label");
    label = field("label");
  }
  if (!caption_given_) {
    check("caption");
    caption = field("caption");
  }
}

Wanted Options::wanted() const {
  const auto place = TextPlace::parse(label);
  if (place.wanted() && classes < 1)
    throw Error(ErrorKind::config, "data.classes", "is 0, but data.label is \"" + label + "\"",
                "set it to the number of classes, or data.label = \"none\"; of shards that `ditto data prepare` made "
                "of a folder, "
                "classes.json beside them says it");
  return {image, place, TextPlace::parse(caption), classes};
}

}  // namespace webdataset
