// Tar shards of pictures with a class or a caption, read by index: the shards' headers are read once when they are
// opened, after which a sample is two or three reads at known places.
#define XXH_INLINE_ALL
#include <sys/resource.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include <ATen/Functions.h>

#include <ditto/data.h>
#include <ditto/error.h>
#include <ditto/sizes.h>

#include <ditto/formats/picture.h>
#include "contents.h"
#include "shard_index.h"

namespace {

using ditto::Error;
using ditto::ErrorKind;
using ditto::Sample;
using webdataset::Item;
using webdataset::TextPlace;
namespace formats = ditto::formats;

struct Options {
  std::vector<std::string> shards, validation_shards;
  std::vector<std::string> image{"png", "jpg", "jpeg", "webp"};
  std::string label = "cls";
  std::string caption = "none";
  int64_t classes = 0;
  std::vector<int64_t> size;
  std::vector<std::string> names;
  int64_t channels = 3;

  void read(ditto::OptionReader& option) {
    option("shards", shards, "tar files to train on: paths or globs, relative to the recipe's folder").place();
    option("validation_shards", validation_shards, "tar files held out, named alike").place();
    option("image", image, "extensions of a sample's picture; the first that is there is taken");
    option("label", label, "where the class stands: \"cls\" (a member), \"json:label\" (a field of one), or \"none\"");
    option("caption", caption, "where the caption stands: \"txt\", \"json:caption\", or \"none\"");
    option("classes", classes, "number of classes; labels are 0 to classes - 1").between(0, ditto::most::kClasses);
    option("names", names, "the classes' names, in the order of their labels: as many as data.classes, or none");
    option("size", size, "[height, width] to crop (centre) and resize to; empty: all pictures must be of one size");
    option("channels", channels, "3 (red, green, blue) or 1 (grey); pictures are converted").one_of({1, 3});
    if (!size.empty() &&
        (size.size() != 2 || size[0] < 1 || size[1] < 1 || std::max(size[0], size[1]) > ditto::most::kSide))
      option.reject("size", "is " + ditto::to_text(ditto::OptionValue(size)),
                    "expected [height, width], each at most " + std::to_string(ditto::most::kSide) + ", or []");
    if (!names.empty() && static_cast<int64_t>(names.size()) != classes)
      option.reject(
          "names", "names " + std::to_string(names.size()) + " classes, and data.classes is " + std::to_string(classes),
          "name each of them once, or none");
    if (image.empty()) option.reject("image", "is empty", "name at least one extension, such as \"png\"");
  }
};

// Shards stay open while there are descriptors to spare; beyond that they take turns.
class OpenFiles {
 public:
  explicit OpenFiles(const std::vector<std::string>& paths) : paths_(paths) {
    rlimit limit{};
    const bool known = ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    slots_.resize(std::clamp<size_t>(known ? limit.rlim_cur / 4 : 256, 1, std::max<size_t>(paths.size(), 1)));
  }

  std::shared_ptr<const formats::RandomFile> get(std::uint32_t shard) const {
    const std::lock_guard lock(mutex_);
    auto& slot = slots_[shard % slots_.size()];
    if (!slot.file || slot.shard != shard) slot = {shard, formats::RandomFile::open(paths_[shard])};
    return slot.file;
  }

 private:
  struct Slot {
    std::uint32_t shard = 0;
    std::shared_ptr<const formats::RandomFile> file;
  };
  const std::vector<std::string>& paths_;
  mutable std::mutex mutex_;
  mutable std::vector<Slot> slots_;
};

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

  WebDataset(const Options& options, const Needs& needs)
      : options_(options),
        label_(TextPlace::parse(options.label)),
        caption_(TextPlace::parse(options.caption)),
        index_(open(options, needs)),
        files_(index_.paths) {
    if (!options_.size.empty()) return;
    if (needs.shapes_only)
      throw Error(ErrorKind::config, "data.size", "is empty, and no picture is read here that would say it",
                  "set data.size = [height, width]");
    options_.size = size_of_first();
  }

  int64_t size() const override { return static_cast<int64_t>(index_.items.size()); }
  std::vector<std::string> warnings() const override { return index_.warnings; }

  ditto::TensorSpecs makes() const override {
    ditto::TensorSpecs out{{"image", at::kFloat, {options_.channels, options_.size[0], options_.size[1]}, "-1 … 1"}};
    if (label_.wanted())
      out.push_back(
          {"label", at::kLong, {}, "0 … " + std::to_string(options_.classes - 1), options_.classes, options_.names});
    if (caption_.wanted()) out.push_back({"caption", at::kByte, {-1}, "UTF-8"});
    return out;
  }

  // All pictures have one size. How long a caption in a JSON text is reading it tells.
  ditto::SampleInfo info(int64_t index) const override {
    const Item& item = index_.items.at(static_cast<size_t>(index));
    ditto::SampleInfo shapes{{"image", {options_.channels, options_.size[0], options_.size[1]}}};
    if (label_.wanted()) shapes["label"] = {};
    if (caption_.wanted() && caption_.field.empty()) shapes["caption"] = {static_cast<int64_t>(item.caption.size)};
    return shapes;
  }

  Sample read(int64_t index) const override {
    const Item& item = index_.items.at(static_cast<size_t>(index));
    const auto file = files_.get(item.shard);
    Sample sample;
    sample.place = index_.place(item, item.extension);
    sample.tensors["image"] = image(*file, item, sample.place);
    if (label_.wanted())
      sample.tensors["label"] = torch::scalar_tensor(
          webdataset::read_label(*file, item.label, label_, index_.place(item, label_.extension)), torch::kLong);
    if (caption_.wanted()) sample.tensors["caption"] = caption(*file, item);
    return sample;
  }

  // First what 0.1.0 knew of the data, by which checkpoints of then are known again; then the contents.
  std::string fingerprint() const override {
    std::call_once(fingerprinted_,
                   [this] { fingerprint_ = names_and_sizes() + ", contents " + hash_of_contents(index_); });
    return fingerprint_;
  }

 private:
  std::string names_and_sizes() const {
    std::string text = "webdataset 1 " + options_.label + ' ' + options_.caption + ' ' +
                       std::to_string(options_.channels) + ' ' + std::to_string(options_.size[0]) + 'x' +
                       std::to_string(options_.size[1]);
    for (size_t i = 0; i < index_.paths.size(); ++i)
      text += '\n' + index_.paths[i].substr(index_.paths[i].rfind('/') + 1) + ' ' + std::to_string(index_.bytes[i]);
    for (const Item& item : index_.items) text += '\n' + item.key;
    char hex[17];
    std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(XXH3_64bits(text.data(), text.size())));
    return std::to_string(size()) + " samples, " + hex;
  }

  static webdataset::ShardIndex open(const Options& options, const Needs& needs) {
    const bool training = needs.split == ditto::SplitOf::train;
    const auto& patterns = training ? options.shards : options.validation_shards;
    const std::string option = training ? "data.shards" : "data.validation_shards";
    if (patterns.empty())
      throw Error(ErrorKind::config, option, "names no shard", "give a list of tar files, such as [\"train-*.tar\"]");
    const auto label = TextPlace::parse(options.label);
    if (label.wanted() && options.classes < 1)
      throw Error(ErrorKind::config, "data.classes", "is 0, but data.label is \"" + options.label + "\"",
                  "set it to the number of classes, or data.label = \"none\"");
    if (needs.shapes_only) return {};
    return webdataset::index_shards(webdataset::expand_shards(patterns, needs.folder, option),
                                    {options.image, label, TextPlace::parse(options.caption), options.classes});
  }

  // Every picture must then have this size; the first that can be read decides.
  std::vector<int64_t> size_of_first() const {
    for (const Item& item : index_.items) {
      try {
        const auto where = index_.place(item, item.extension);
        const auto bytes = formats::read_member(*files_.get(item.shard), item.image.offset, item.image.size, where);
        const auto picture = formats::picture_size(bytes, where);
        return {picture.height, picture.width};
      } catch (const Error& error) {
        if (&item == &index_.items.back()) throw;
      }
    }
    return {};
  }

  torch::Tensor image(const formats::RandomFile& file, const Item& item, const std::string& place) const {
    const auto bytes = formats::read_member(file, item.image.offset, item.image.size, place);
    const auto channels = options_.channels == 1 ? formats::Channels::grey : formats::Channels::rgb;
    const auto picture = formats::decode_picture(bytes, place, {.channels = channels});
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

  torch::Tensor caption(const formats::RandomFile& file, const Item& item) const {
    const auto place = index_.place(item, caption_.extension);
    const auto bytes = formats::read_member(file, item.caption.offset, item.caption.size, place);
    std::string caption(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (!caption_.field.empty()) caption = formats::json_text(caption, caption_.field, place);
    auto out = torch::empty({static_cast<int64_t>(caption.size())}, torch::kByte);
    std::memcpy(out.data_ptr(), caption.data(), caption.size());
    return out;
  }

  Options options_;
  bool resizes_ = !options_.size.empty();  // before the constructor fills in the size
  TextPlace label_, caption_;
  webdataset::ShardIndex index_;
  OpenFiles files_;
  mutable std::once_flag fingerprinted_;
  mutable std::string fingerprint_;
};

}  // namespace

DITTO_PLUGIN(Source, WebDataset, "webdataset", "1.0.0", "Apache-2.0",
             "pictures in tar shards, with a class or a caption")
