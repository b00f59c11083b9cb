#include "options.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include <ditto/error.h>
#include <ditto/formats/file.h>
#include <ditto/formats/json.h>
#include <ditto/formats/limits.h>
#include <ditto/formats/names.h>
#include <ditto/formats/saved_tensor.h>
#include <ditto/formats/video_name.h>
#include <ditto/math/sizes.h>
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

bool Options::has_latents() const { return formats::is_tensor_name(image.front()); }

bool Options::has_videos() const { return formats::is_video_name(image.front()); }

void Options::read(ditto::OptionReader& option) {
  option("shards", shards,
         "tar files to train on: paths, globs or braces, relative to the recipe's folder; or URLs, with braces")
      .place();
  option("validation_shards", validation_shards, "tar files held out, named alike").place();
  option("path", path, "instead of shards: a folder, or URL, prepared by `energon prepare` or `ditto data prepare`")
      .place();
  option("split", split, "with data.path: the part of the set to train on");
  option("validation_split", validation_split, "with data.path: the part held out");
  option("image", said_image_,
         "extensions of a sample's picture or video file, of which the first that is there is taken; empty: as the set "
         "of data.path says, else the one of png, jpg, jpeg, webp, avif that is there");
  if (!said_image_.empty()) image = said_image_;
  knows_image_ = !said_image_.empty();
  for (auto& extension : image) extension = lower(extension);
  option(
      "label", said_label_,
      "where the class stands: \"cls\" (a member), \"json:label\" (a field of one), or \"none\"; empty: as the set of "
      "data.path says, else \"cls\"");
  if (!said_label_.empty()) label = said_label_;
  option("caption", said_caption_,
         "where the caption stands: \"txt\", \"json:caption\", or \"none\"; empty: as the set of data.path says, else "
         "\"none\"");
  if (!said_caption_.empty()) caption = said_caption_;
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
  option("latent", latent,
         "of tensors in place of pictures (data.image = [\"pth\"]): their shape, [channels, frames, rows, columns] or "
         "without frames; -1: each sample's own. Empty: all have that of the first");
  option("text", text, "the member with an embedded text: \"pickle\", \"pth\", or \"none\"");
  option(
      "text_key", text_key,
      "which text of a member that holds {key: {\"encodings\": text}}, as NeMo Imagen's pickles; empty: it holds one")
      .noted_if_given();
  option("text_name", text_name, "of the tensors that are made of it: NAME and NAME_mask").noted_if_given();
  option("text_tokens", text_tokens, "the most tokens of a text; what is longer is cut. 0: all")
      .between(0, ditto::most::kSide);
  option("text_width", text_width, "numbers of a text's embedded token; 0: as in the first sample")
      .between(0, ditto::most::kWidth);
  option("frames", frames, "of video files (data.image = [\"mp4\"]): how many frames are taken of each")
      .between(0, ditto::most::kSide);
  option("interval", interval, "how many frames further the next one taken is").between(1, 1'000'000);
  option("first", first, "which frame is the first taken, counted from 0").between(0, 1'000'000'000);
  option("decoder", decoder, "the plugin that decodes video files");
  option("store_timeout_s", store.timeout_s,
         "of shards at http:// or https:// addresses: seconds to connect, and without a byte, until a request is made "
         "again")
      .between(1.0, 3600.0)
      .changes(ditto::Effect::nothing);
  option("store_retries", store.retries, "how often in a row without a byte, until the sample is a bad one")
      .between(0, 100)
      .changes(ditto::Effect::nothing);
  option(
      "store_region", store.region,
      "requests are signed for S3 in this region, with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN; "
      "empty: not signed")
      .changes(ditto::Effect::nothing);
  refuse_contradictions(option);
}

void Options::refuse_contradictions(ditto::OptionReader& option) const {
  if (!size.empty() &&
      (size.size() != 2 || size[0] < 1 || size[1] < 1 || std::max(size[0], size[1]) > ditto::most::kSide))
    option.reject("size", "is " + ditto::to_text(ditto::OptionValue(size)),
                  "expected [height, width], each at most " + std::to_string(ditto::most::kSide) + ", or []");
  if (!names.empty() && static_cast<int64_t>(names.size()) != classes)
    option.reject("names",
                  "names " + std::to_string(names.size()) + " classes, and data.classes is " + std::to_string(classes),
                  "name each of them once, or none");
  const auto latents = std::count_if(image.begin(), image.end(), formats::is_tensor_name);
  if (latents != 0 && latents != static_cast<std::ptrdiff_t>(image.size()))
    option.reject("image", "names tensors beside pictures", "name one kind");
  if (latents == 0 && !latent.empty())
    option.reject("latent", "is of tensors, and data.image names pictures", "set data.image = [\"pth\"]");
  if (latents != 0 && !size.empty())
    option.reject("size", "crops pictures, and data.image names tensors", "leave it out; data.latent says their shape");
  if (!latent.empty() && (latent.size() < 3 || latent.size() > 4 || latent.front() < 1 ||
                          !std::all_of(latent.begin(), latent.end(),
                                       [](int64_t n) { return n == -1 || (n >= 1 && n <= ditto::most::kSide); })))
    option.reject("latent", "is " + ditto::to_text(ditto::OptionValue(latent)),
                  "expected [channels, frames, rows, columns], or without frames, -1 for sides that differ");
  const auto videos = std::count_if(image.begin(), image.end(), formats::is_video_name);
  if (videos != 0 && videos != static_cast<std::ptrdiff_t>(image.size()))
    option.reject("image", "names videos beside others", "name one kind; a blend of two sources may have both");
  for (const auto& [name, is_given] :
       {std::pair("frames", frames > 0), std::pair("interval", interval > 1), std::pair("first", first > 0)})
    if (videos == 0 && is_given)
      option.reject(name, "is of video files, and data.image names none",
                    "set data.image = [\"mp4\"], or leave it out");
  option.only_if(!size.empty(), {"resize"}, "says how pictures come to data.size, and there is none");
  option.only_if(videos != 0, {"decoder"}, "is of video files, and data.image names none");
  if (text == kNone && text_tokens + text_width > 0)
    option.reject(text_tokens > 0 ? "text_tokens" : "text_width", "is of texts, and data.text is \"none\"",
                  "set data.text = \"pickle\"");
  option.only_if(text != kNone, {"text_key", "text_name"}, "is of texts, and data.text is \"none\"");
  if (text_name.empty()) option.reject("text_name", "is empty", "name what is made, as \"text\"");
  option.only_if(shards.empty() && validation_shards.empty(), {"path"}, "stands beside data.shards");
  option.only_if(!path.empty(), {"split", "validation_split"}, "is of a prepared set, and data.path names none");
  refuse(option, "label", label);
  refuse(option, "caption", caption);
}

void Options::take_classes(const std::vector<std::string>& folders) {
  if (label != "cls") return;
  for (std::size_t i = 0; i < names.size(); ++i)
    if (const auto number = formats::number_of_name(names[i]); number && *number != static_cast<double>(i)) {
      notes.push_back("labels are numbers of classes, also where data.names are numbers: " + std::to_string(i) +
                      " is the class called \"" + ditto::shown(names[i], 60) + "\"");
      break;
    }
  std::string first;
  std::vector<std::string> all;
  for (const auto& folder : folders) {
    const auto file = joined(folder, "classes.json");
    // Where the recipe says the classes, or another folder does, a store is asked only to see whether they differ; it
    // may answer 403 to who asks for what is not there.
    const bool is_known = is_url(file) && (classes > 0 || !first.empty());
    if (is_known ? folders.size() == 1 || !store.shows(file) : !store.has(file)) continue;
    const auto list = formats::parse_json(store.read(file, formats::limits::kRecipeBytes), file, ErrorKind::data);
    if (!list.is_array() || !std::all_of(list.begin(), list.end(), [](const auto& name) { return name.is_string(); }))
      throw Error(ErrorKind::data, file, "is no list of names", "correct it, or set data.classes and data.names");
    auto theirs = list.get<std::vector<std::string>>();
    if (first.empty()) {
      first = file;
      all = std::move(theirs);
    } else if (theirs != all) {
      throw Error(ErrorKind::data, file, "names other classes than " + first + ", and labels are numbers",
                  "make the shards of all folders together (`ditto data prepare`), or train on those of one list");
    }
  }
  if (first.empty()) return;
  if (!names.empty()) return compare_names(all, first);
  if (classes == 0) classes = static_cast<int64_t>(all.size());
  if (classes == static_cast<int64_t>(all.size()))
    names = std::move(all);
  else
    notes.push_back(first + " names " + std::to_string(all.size()) + " classes, and data.classes is " +
                    std::to_string(classes) + ": its names are not taken");
}

void Options::compare_names(const std::vector<std::string>& theirs, const std::string& file) {
  const auto apart = formats::names_apart(names, theirs);
  if (!apart) return;
  const auto what = "calls class " + std::to_string(apart->number) + " \"" + ditto::shown(apart->name, 60) +
                    "\", and " + file + " calls it \"" + ditto::shown(apart->other, 60) + "\"";
  if (apart->is_elsewhere)
    throw Error(ErrorKind::config, "data.names", what + ", by which labels are numbered",
                "name them in the order of that file, or leave data.names out");
  notes.push_back("data.names " + what);
}

void Options::take(const EnergonSet& set) {
  if (!set.made_by.empty()) {
    if (!said_image_.empty()) return;
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
  if (said_image_.empty()) {
    const auto places = check("image");
    if (!places.wanted())
      throw Error(ErrorKind::config, set.folder,
                  "its samples (" + ditto::shown(set.sample_type, 120) + ") have no picture in their field_map",
                  "say in the recipe where it stands: data.image");
    knows_image_ = true;
    image.clear();
    for (const auto& place : places.any_of) {
      if (!place.path.empty())
        throw Error(ErrorKind::config, set.folder, "its pictures stand inside of a JSON text, by field_map.image",
                    "say in the recipe where files of pictures stand: data.image");
      image.push_back(place.extension);
    }
  }
  if (said_label_.empty()) {
    check("label");
    label = field("label");
  }
  if (said_caption_.empty()) {
    check("caption");
    caption = field("caption");
  }
}

Wanted Options::wanted() const {
  const auto place = TextPlace::parse(label);
  if (has_videos() && frames == 0)
    throw Error(ErrorKind::config, "data.frames", "is 0, and data.image names video files",
                "say how many frames are taken of each");
  if (place.wanted() && classes < 1)
    throw Error(ErrorKind::config, "data.classes", "is 0, but data.label is \"" + label + "\"",
                "set it to the number of classes, or data.label = \"none\"; of shards that `ditto data prepare` made "
                "of a folder, "
                "classes.json beside them says it");
  if (!place.wanted() && classes > 0)
    throw Error(ErrorKind::config, "data.classes",
                "is " + std::to_string(classes) + ", and no labels are read: " +
                    (said_label_.empty() ? "the set of data.path names none" : "data.label is \"none\""),
                "set data.label to where they stand, as \"cls\", or leave data.classes and data.names out");
  return {image, place, TextPlace::parse(caption), text == kNone ? "" : text, classes, names, !knows_image_};
}

}  // namespace webdataset
