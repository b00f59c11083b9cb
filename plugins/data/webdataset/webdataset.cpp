// Tar shards of pictures or videos with a class or a caption, read by index: shards that the recipe lists, or a set
// that was prepared for Megatron-Energon.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <mutex>

#include <ATen/Functions.h>

#include <ditto/data.h>
#include <ditto/error.h>
#include <ditto/math/pictures.h>
#include <ditto/video_decoder.h>

#include <ditto/formats/picture.h>
#include <ditto/formats/picture_resize.h>
#include "latents.h"
#include "options.h"
#include "prepared_shards.h"

namespace {

using ditto::Error;
using ditto::ErrorKind;
using ditto::Sample;
using webdataset::Options;
using webdataset::RawSample;
using webdataset::Wanted;
namespace formats = ditto::formats;

class WebDataset final : public ditto::Source {
 public:
  using Options = ::Options;

  WebDataset(const Options& options, const Needs& needs) : options_(options) {
    open(needs);
    if (options_.has_videos() && !needs.shapes_only) {
      if (!needs.decoder)
        throw Error(ErrorKind::plugin, "data.decoder", "the program that reads these shards has no decoders to give");
      decoder_ = needs.decoder(options_.decoder);
    }
    if (options_.has_latents() || options_.text != webdataset::kNone) complete_tensors(needs);
    if (options_.has_latents() || !options_.size.empty()) return;
    if (needs.shapes_only)
      throw Error(ErrorKind::config, "data.size", "is empty, and no picture is read here that would say it",
                  "set data.size = [height, width]");
    options_.size = size_of_first();
  }

  int64_t size() const override { return samples_ ? samples_->size() : 0; }
  std::vector<std::string> warnings() const override { return samples_->warnings(); }
  std::vector<std::string> notes() const override {
    auto all = options_.notes;
    for (auto& note : samples_->notes()) all.push_back(std::move(note));
    return all;
  }
  std::vector<std::string> holds() const override { return samples_->shards(); }

  ditto::TensorSpecs makes() const override {
    ditto::TensorSpecs out{image_spec()};
    if (wanted_.label.wanted())
      out.push_back(
          {"label", at::kLong, {}, "0 … " + std::to_string(options_.classes - 1), options_.classes, options_.names});
    if (wanted_.caption.wanted()) out.push_back({"caption", at::kByte, {-1}, "UTF-8"});
    if (!wanted_.text.empty()) {
      out.push_back({options_.text_name, at::kFloat, {-1, options_.text_width}, "any"});
      out.push_back({options_.text_name + "_mask", at::kBool, {-1}, "true; false where a batch is padded"});
    }
    return out;
  }

  // All pictures have one size; of a latent that has its own, the file's header is read, once. How long a caption is
  // reading it tells.
  ditto::SampleInfo info(int64_t index) const override {
    ditto::SampleInfo shapes{{"image", shape_of(index)}};
    if (wanted_.label.wanted()) shapes["label"] = {};
    return shapes;
  }

  Sample read(int64_t index) const override {
    const auto raw = samples_->read(index);
    Sample sample;
    sample.place = raw.place(raw.extension);
    sample.tensors["image"] = options_.has_latents()  ? webdataset::latent_in(raw.image, options_.latent, sample.place)
                              : options_.has_videos() ? video(raw, sample.place)
                                                      : image(raw, sample.place);
    if (!wanted_.text.empty()) {
      const auto text = webdataset::text_in(raw.text, options_.text_key, options_.text_width, options_.text_tokens,
                                            raw.place(wanted_.text));
      sample.tensors[options_.text_name] = text;
      sample.tensors[options_.text_name + "_mask"] = torch::ones({text.size(0)}, torch::kBool);
    }
    if (raw.label_from)
      sample.tensors["label"] = torch::scalar_tensor(
          webdataset::label_in(raw.label, *raw.label_from, raw.place(raw.label_from->extension)), torch::kLong);
    if (raw.caption_from) sample.tensors["caption"] = caption(raw);
    return sample;
  }

  // First what 0.1.0 knew of the data, by which checkpoints of then are known again; then the contents.
  std::string fingerprint() const override {
    std::call_once(fingerprinted_, [this] { fingerprint_ = names_and_sizes() + ", contents " + samples_->contents(); });
    return fingerprint_;
  }

 private:
  std::string names_and_sizes() const {
    std::string text =
        "webdataset 1 " + options_.label + ' ' + options_.caption + ' ' + std::to_string(options_.channels) + ' ';
    if (options_.has_latents())
      for (const int64_t side : options_.latent) text += std::to_string(side) + ' ';
    else
      text += std::to_string(options_.size[0]) + 'x' + std::to_string(options_.size[1]) +
              (options_.resize == "bilinear" ? "" : " " + options_.resize);
    if (options_.has_videos())
      text += " frames " + std::to_string(options_.frames) + ' ' + std::to_string(options_.interval) + ' ' +
              std::to_string(options_.first);
    if (!wanted_.text.empty())
      text +=
          ' ' + wanted_.text + ' ' + std::to_string(options_.text_tokens) + ' ' + std::to_string(options_.text_width);
    if (!options_.text_key.empty()) text += " of " + options_.text_key;
    text += samples_->names();
    char hex[17];
    std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(XXH3_64bits(text.data(), text.size())));
    return std::to_string(size()) + " samples, " + hex;
  }

  void open(const Needs& needs) {
    const bool training = needs.split == ditto::SplitOf::train;
    const auto& patterns = training ? options_.shards : options_.validation_shards;
    const std::string option = training ? "data.shards" : "data.validation_shards";
    const std::string set_path = options_.path.empty() ? "" : webdataset::joined(needs.folder, options_.path);
    if (patterns.empty() && set_path.empty())
      throw Error(ErrorKind::config, option, "names no shard",
                  "give a list of tar files, such as [\"train-*.tar\"], or in data.path a folder with .nv-meta");
    // What the set says of its fields decides what the source makes, also where nothing else is read.
    webdataset::EnergonSet set;
    if (!set_path.empty() && !(needs.shapes_only && options_.says_all_places())) {
      set = webdataset::read_energon_set(set_path, options_.store);
      options_.take(set);
    }
    options_.take_classes(set_path.empty() ? folders_of_all_shards(needs.folder) : std::vector{set_path});
    wanted_ = options_.wanted();
    if (needs.shapes_only) return;
    if (set_path.empty()) {
      auto paths = webdataset::expand_shards(patterns, needs.folder, option);
      // Also where nobody validates: what the recipe holds out is not learned from.
      if (training) webdataset::require_apart(paths, options_.validation_shards, needs.folder);
      if (training)
        for (auto& note : webdataset::notes_on_shards(paths)) options_.notes.push_back(std::move(note));
      samples_ = std::make_unique<webdataset::ListedShards>(std::move(paths), wanted_, options_.store);
    } else
      samples_ = std::make_unique<webdataset::PreparedShards>(
          set,
          training
              ? webdataset::shards_of_split(set, options_.split, "data.split", options_.store)
              : webdataset::shards_of_split(set, options_.validation_split, "data.validation_split", options_.store),
          wanted_, options_.store);
  }

  // Those held out have the same classes.
  std::vector<std::string> folders_of_all_shards(const std::string& folder) const {
    auto all = webdataset::folders_of_shards(options_.shards, folder, "data.shards");
    for (auto& held : webdataset::folders_of_shards(options_.validation_shards, folder, "data.validation_shards"))
      if (std::find(all.begin(), all.end(), held) == all.end()) all.push_back(std::move(held));
    return all;
  }

  ditto::TensorSpec image_spec() const {
    if (!options_.has_latents()) return {"image", at::kFloat, shape_of_pixels(), "-1 … 1"};
    auto shape = options_.latent;
    std::replace(shape.begin(), shape.end(), int64_t{-1}, ditto::kOwnSide);
    return {"image", at::kFloat, shape, "any"};
  }

  std::vector<int64_t> shape_of_pixels() const {
    if (options_.has_videos()) return {options_.channels, options_.frames, options_.size[0], options_.size[1]};
    return {options_.channels, options_.size[0], options_.size[1]};
  }

  std::vector<int64_t> shape_of(int64_t index) const {
    if (!options_.has_latents()) return shape_of_pixels();
    if (std::find(options_.latent.begin(), options_.latent.end(), -1) == options_.latent.end()) return options_.latent;
    return latent_shapes_.of(index, [&] {
      try {
        return stored_shape(index);
      } catch (const Error&) {
        return first_shape();  // it keeps its place, and is a bad sample once it is read
      }
    });
  }

  webdataset::Shape stored_shape(int64_t index) const {
    const auto raw = samples_->read(index);
    return webdataset::latent_shape(raw.image, options_.latent, raw.place(raw.extension));
  }

  // Of the first sample that can be read.
  const webdataset::Shape& first_shape() const {
    std::call_once(first_read_, [this] {
      for (int64_t i = 0; first_shape_.empty(); ++i) {
        try {
          first_shape_ = stored_shape(i);
        } catch (const Error&) {
          if (i == size() - 1) throw;
        }
      }
    });
    return first_shape_;
  }

  // What the recipe does not say of latents and texts the first sample does that can be read.
  void complete_tensors(const Needs& needs) {
    const bool no_latent = options_.has_latents() && options_.latent.empty();
    const bool no_width = options_.text != webdataset::kNone && options_.text_width == 0;
    if (!no_latent && !no_width) return;
    if (needs.shapes_only)
      throw Error(ErrorKind::config, no_latent ? "data.latent" : "data.text_width",
                  "is not there, and no sample is read here that would say it", "set it");
    for (int64_t i = 0; i < size(); ++i) {
      try {
        const auto raw = samples_->read(i);
        const auto shape =
            no_latent ? webdataset::latent_shape(raw.image, {}, raw.place(raw.extension)) : webdataset::Shape{};
        if (no_width)
          options_.text_width = webdataset::text_width_of(raw.text, options_.text_key, raw.place(options_.text));
        if (no_latent) options_.latent = shape;
        return;
      } catch (const Error&) {
        if (i == size() - 1) throw;
      }
    }
  }

  // Every picture must then have this size; the first that can be read decides.
  std::vector<int64_t> size_of_first() const {
    for (int64_t i = 0; i < size(); ++i) {
      try {
        const auto raw = samples_->read(i);
        if (options_.has_videos()) {
          const auto video = open_video(raw, raw.place(raw.extension));
          return {video->height(), video->width()};
        }
        const auto picture = formats::picture_size(raw.image, raw.place(raw.extension));
        return {picture.height, picture.width};
      } catch (const Error& error) {
        if (i == size() - 1) throw;
      }
    }
    return {};
  }

  bool covers() const { return resizes_ && options_.resize == "bicubic"; }

  torch::Tensor image(const RawSample& raw, const std::string& place) const {
    const auto channels = options_.channels == 1 ? formats::Channels::grey : formats::Channels::rgb;
    const auto height = static_cast<int>(options_.size[0]), width = static_cast<int>(options_.size[1]);
    return sized(formats::decode_picture(raw.image, place,
                                         {.channels = channels, .covers = covers() ? std::max(height, width) : 0}),
                 place);
  }

  std::unique_ptr<ditto::Video> open_video(const RawSample& raw, const std::string& place) const {
    return decoder_->open(
        {place, raw.image.size(), [bytes = raw.image](std::uint64_t offset, std::span<std::byte> into) {
           std::memcpy(into.data(), bytes.data() + offset, into.size());
         }});
  }

  // [C, T, H, W]
  torch::Tensor video(const RawSample& raw, const std::string& place) const {
    std::vector<torch::Tensor> frames;
    open_video(raw, place)
        ->decode({options_.first, options_.frames, options_.interval}, [&](const ditto::VideoFrame& frame) {
          formats::Picture picture{static_cast<int>(frame.width),
                                   static_cast<int>(frame.height),
                                   3,
                                   {frame.pixels.begin(), frame.pixels.end()}};
          if (options_.channels == 1) formats::convert(picture, formats::Channels::grey);
          frames.push_back(sized(std::move(picture), place));
        });
    return at::stack(frames, 1);
  }

  torch::Tensor sized(formats::Picture picture, const std::string& place) const {
    if (covers())
      picture =
          formats::cover(std::move(picture), static_cast<int>(options_.size[0]), static_cast<int>(options_.size[1]));
    const auto image = ditto::image_of_pixels(picture.pixels, picture.height, picture.width, picture.channels);
    if (resizes_) return ditto::crop_and_resize(image, options_.size[0], options_.size[1]);
    if (picture.height != options_.size[0] || picture.width != options_.size[1])
      throw Error(ErrorKind::data, place,
                  "the picture is " + std::to_string(picture.height) + " x " + std::to_string(picture.width) +
                      " (height x width), the first one " + std::to_string(options_.size[0]) + " x " +
                      std::to_string(options_.size[1]),
                  "set data.size = [height, width] to crop and resize all pictures");
    return image;
  }

  static torch::Tensor caption(const RawSample& raw) {
    const auto text = webdataset::caption_in(raw.caption, *raw.caption_from, raw.place(raw.caption_from->extension));
    auto out = torch::empty({static_cast<int64_t>(text.size())}, torch::kByte);
    std::memcpy(out.data_ptr(), text.data(), text.size());
    return out;
  }

  Options options_;
  bool resizes_ = !options_.size.empty();  // before the constructor fills in the size
  Wanted wanted_;
  std::shared_ptr<const ditto::VideoDecoder> decoder_;  // null where there are pictures or latents
  webdataset::Shapes latent_shapes_;
  mutable std::once_flag first_read_;
  mutable webdataset::Shape first_shape_;
  std::unique_ptr<webdataset::Samples> samples_;
  mutable std::once_flag fingerprinted_;
  mutable std::string fingerprint_;
};

}  // namespace

DITTO_PLUGIN(Source, WebDataset, "webdataset", "1.0.0", "Apache-2.0",
             "pictures and videos in tar shards, with a class or a caption")
