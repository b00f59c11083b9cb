// Tar shards of pictures with a class or a caption, read by index: shards that the recipe lists, or a set that was
// prepared for Megatron-Energon.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <mutex>

#include <ATen/Functions.h>

#include <ditto/data.h>
#include <ditto/error.h>

#include <ditto/formats/picture.h>
#include <ditto/formats/picture_resize.h>
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

// [C, H, W], v / 127.5 - 1.
torch::Tensor to_tensor(const formats::Picture& picture) {
  auto out = torch::empty({picture.channels, picture.height, picture.width});
  auto* to = out.data_ptr<float>();
  const auto area = static_cast<size_t>(picture.height) * static_cast<size_t>(picture.width);
  const auto channels = static_cast<size_t>(picture.channels);
  for (size_t c = 0; c < channels; ++c)
    for (size_t i = 0; i < area; ++i)
      to[c * area + i] = static_cast<float>(picture.pixels[i * channels + c]) / 127.5f - 1.0f;
  return out;
}

// The largest centred part of the wanted proportions, resized with a triangle filter as wide as a target pixel (which
// is an interpolation where pictures grow), so that small pictures are not aliased.
torch::Tensor crop_and_resize(const torch::Tensor& image_CHW, int64_t height, int64_t width) {
  const int64_t h = image_CHW.size(1), w = image_CHW.size(2);
  if (h == height && w == width) return image_CHW;
  const int64_t part_h = std::clamp<int64_t>((w * height + width / 2) / width, 1, h);
  const int64_t part_w = std::clamp<int64_t>((h * width + height / 2) / height, 1, w);
  const auto part = image_CHW.narrow(1, (h - part_h) / 2, part_h).narrow(2, (w - part_w) / 2, part_w);
  return at::_upsample_bilinear2d_aa(part.unsqueeze(0).contiguous(), {height, width}, false).squeeze(0);
}

class WebDataset final : public ditto::Source {
 public:
  using Options = ::Options;

  WebDataset(const Options& options, const Needs& needs) : options_(options) {
    open(needs);
    if (!options_.size.empty()) return;
    if (needs.shapes_only)
      throw Error(ErrorKind::config, "data.size", "is empty, and no picture is read here that would say it",
                  "set data.size = [height, width]");
    options_.size = size_of_first();
  }

  int64_t size() const override { return samples_ ? samples_->size() : 0; }
  std::vector<std::string> warnings() const override { return samples_->warnings(); }

  ditto::TensorSpecs makes() const override {
    ditto::TensorSpecs out{{"image", at::kFloat, {options_.channels, options_.size[0], options_.size[1]}, "-1 … 1"}};
    if (wanted_.label.wanted())
      out.push_back(
          {"label", at::kLong, {}, "0 … " + std::to_string(options_.classes - 1), options_.classes, options_.names});
    if (wanted_.caption.wanted()) out.push_back({"caption", at::kByte, {-1}, "UTF-8"});
    return out;
  }

  // All pictures have one size. How long a caption in a JSON text is reading it tells.
  ditto::SampleInfo info(int64_t index) const override {
    ditto::SampleInfo shapes{{"image", {options_.channels, options_.size[0], options_.size[1]}}};
    if (wanted_.label.wanted()) shapes["label"] = {};
    if (const auto bytes = samples_->caption_bytes(index); bytes >= 0) shapes["caption"] = {bytes};
    return shapes;
  }

  Sample read(int64_t index) const override {
    const auto raw = samples_->read(index);
    Sample sample;
    sample.place = raw.place(raw.extension);
    sample.tensors["image"] = image(raw, sample.place);
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
    const std::string text = "webdataset 1 " + options_.label + ' ' + options_.caption + ' ' +
                             std::to_string(options_.channels) + ' ' + std::to_string(options_.size[0]) + 'x' +
                             std::to_string(options_.size[1]) +
                             (options_.resize == "bilinear" ? "" : " " + options_.resize) + samples_->names();
    char hex[17];
    std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(XXH3_64bits(text.data(), text.size())));
    return std::to_string(size()) + " samples, " + hex;
  }

  void open(const Needs& needs) {
    const bool training = needs.split == ditto::SplitOf::train;
    const auto& patterns = training ? options_.shards : options_.validation_shards;
    const std::string option = training ? "data.shards" : "data.validation_shards";
    const std::string set_path =
        options_.path.empty() ? "" : (std::filesystem::path(needs.folder) / options_.path).lexically_normal().string();
    if (patterns.empty() && set_path.empty())
      throw Error(ErrorKind::config, option, "names no shard",
                  "give a list of tar files, such as [\"train-*.tar\"], or in data.path a folder with .nv-meta");
    // What the set says of its fields decides what the source makes, also where nothing else is read.
    webdataset::EnergonSet set;
    if (!set_path.empty() && !(needs.shapes_only && options_.says_all_places())) {
      set = webdataset::read_energon_set(set_path);
      options_.take(set);
    }
    const auto& named = options_.shards.empty() ? options_.validation_shards : options_.shards;
    options_.take_classes(
        set_path.empty() ? (std::filesystem::path(needs.folder) / named.front()).parent_path().string() : set_path);
    wanted_ = options_.wanted();
    if (needs.shapes_only) return;
    if (set_path.empty())
      samples_ = std::make_unique<webdataset::ListedShards>(webdataset::expand_shards(patterns, needs.folder, option),
                                                            wanted_);
    else
      samples_ = std::make_unique<webdataset::PreparedShards>(
          set,
          training ? webdataset::shards_of_split(set, options_.split, "data.split")
                   : webdataset::shards_of_split(set, options_.validation_split, "data.validation_split"),
          wanted_);
  }

  // Every picture must then have this size; the first that can be read decides.
  std::vector<int64_t> size_of_first() const {
    for (int64_t i = 0; i < size(); ++i) {
      try {
        const auto raw = samples_->read(i);
        const auto picture = formats::picture_size(raw.image, raw.place(raw.extension));
        return {picture.height, picture.width};
      } catch (const Error& error) {
        if (i == size() - 1) throw;
      }
    }
    return {};
  }

  torch::Tensor image(const RawSample& raw, const std::string& place) const {
    const auto channels = options_.channels == 1 ? formats::Channels::grey : formats::Channels::rgb;
    const bool covers = resizes_ && options_.resize == "bicubic";
    const auto height = static_cast<int>(options_.size[0]), width = static_cast<int>(options_.size[1]);
    auto picture = formats::decode_picture(
        raw.image, place, {.channels = channels, .least_side = covers ? formats::least_side_for(height, width) : 0});
    if (covers) return to_tensor(formats::cover(std::move(picture), height, width));
    const auto image = to_tensor(picture);
    if (resizes_) return crop_and_resize(image, options_.size[0], options_.size[1]);
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
  std::unique_ptr<webdataset::Samples> samples_;
  mutable std::once_flag fingerprinted_;
  mutable std::string fingerprint_;
};

}  // namespace

DITTO_PLUGIN(Source, WebDataset, "webdataset", "1.0.0", "Apache-2.0",
             "pictures in tar shards, with a class or a caption")
