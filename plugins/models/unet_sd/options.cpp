#include "options.h"

#include <algorithm>
#include <utility>

#include <ditto/math/sizes.h>

namespace unet_sd {

namespace most = ditto::most;

namespace {

constexpr size_t kMostLevels = 8;

std::vector<Options> published() {
  Options sd1, sd2, sdxl;
  sd1.preset = "sd1";
  sd2.preset = "sd2";
  sd2.attention_head_dim = {5, 10, 20, 20};
  sd2.use_linear_projection = sd2.upcast_attention = true;
  sdxl.preset = "sdxl";
  sdxl.block_out_channels = {320, 640, 1280};
  sdxl.down_block_types = {Options::kDown, Options::kDownText, Options::kDownText};
  sdxl.up_block_types = {Options::kUpText, Options::kUpText, Options::kUp};
  sdxl.attention_head_dim = {5, 10, 20};
  sdxl.transformer_layers_per_block = {1, 2, 10};
  sdxl.use_linear_projection = true;
  sdxl.addition_embed_type = Options::kTextTime;
  sdxl.projection_class_embeddings_input_dim = 1280 + kWholePicture * sdxl.addition_time_embed_dim;
  return {sd1, sd2, sdxl};
}

bool are(const std::vector<std::string>& names, const std::vector<std::string>& allowed) {
  return std::all_of(names.begin(), names.end(), [&](const auto& name) {
    return std::find(allowed.begin(), allowed.end(), name) != allowed.end();
  });
}

}  // namespace

std::vector<int64_t> shortest(std::vector<int64_t> list) {
  if (std::all_of(list.begin(), list.end(), [&](int64_t number) { return number == list[0]; }))
    list.resize(std::min<size_t>(list.size(), 1));
  return list;
}

void Options::check_levels(const ditto::OptionReader& option) const {
  const size_t count = block_out_channels.size();
  const auto text = [](const auto& list) { return "is " + ditto::to_text(ditto::OptionValue(list)); };
  const auto one_each = "give one for each of the " + std::to_string(count) + " block_out_channels";
  if (count < 1 || count > kMostLevels ||
      !std::all_of(block_out_channels.begin(), block_out_channels.end(), [&](int64_t channels) {
        return channels >= 1 && channels <= most::kWidth && channels % norm_num_groups == 0;
      }))
    option.reject("block_out_channels",
                  text(block_out_channels) + ", expected 1 to " + std::to_string(kMostLevels) +
                      " multiples of norm_num_groups = " + std::to_string(norm_num_groups),
                  "choose multiples, or another norm_num_groups");
  if (down_block_types.size() != count || !are(down_block_types, {kDown, kDownText}))
    option.reject("down_block_types", text(down_block_types) + ", expected \"DownBlock2D\" or \"CrossAttnDownBlock2D\"",
                  one_each);
  if (up_block_types.size() != count || !are(up_block_types, {kUp, kUpText}))
    option.reject("up_block_types", text(up_block_types) + ", expected \"UpBlock2D\" or \"CrossAttnUpBlock2D\"",
                  one_each);
  const auto check = [&](const char* name, const std::vector<int64_t>& list, int64_t least, int64_t largest) {
    const bool fits = (list.size() == 1 || list.size() == count) &&
                      std::all_of(list.begin(), list.end(), [&](int64_t n) { return n >= least && n <= largest; });
    if (!fits)
      option.reject(name,
                    text(list) + ", expected numbers from " + std::to_string(least) + " to " + std::to_string(largest),
                    one_each + ", or one for all");
  };
  check("layers_per_block", layers_per_block, 1, most::kPatch);
  check("attention_head_dim", attention_head_dim, 1, most::kHeads);
  check("transformer_layers_per_block", transformer_layers_per_block, 1, most::kPatch);
  check("only_cross_attention", only_cross_attention, 0, 1);
}

void Options::check_heads(const ditto::OptionReader& option) const {
  for (const auto& place : places_of(*this))
    if (place.heads > 0 && place.out % place.heads != 0)
      option.reject("attention_head_dim",
                    "gives " + std::to_string(place.heads) + " heads to " + std::to_string(place.out) +
                        " channels, which they do not divide",
                    "it is the number of heads here, as in diffusers' configurations: choose one that divides them");
}

void Options::read(ditto::OptionReader& option) {
  const auto sizes = published();
  option("preset", preset, "a published UNet (Stable Diffusion 1, 2.1, XL); the options below override its parts")
      .one_of({"", sizes[0].preset, sizes[1].preset, sizes[2].preset});
  for (const auto& size : sizes)
    if (size.preset == preset) *this = size;
  option("block_out_channels", block_out_channels,
         "of a map in each level, that of the picture first; each level but the last halves the sides");
  option("down_block_types", down_block_types,
         "of each level: \"CrossAttnDownBlock2D\", with transformers, or \"DownBlock2D\"");
  option("up_block_types", up_block_types,
         "of the levels in the way up's order: \"CrossAttnUpBlock2D\", with transformers, or \"UpBlock2D\"");
  option("layers_per_block", layers_per_block,
         "residual blocks of each level, or a list of one number for all; on the way up one more");
  option("attention_head_dim", attention_head_dim,
         "of each level the number of heads, as in diffusers, where this name says otherwise; or of one for all");
  option("transformer_layers_per_block", transformer_layers_per_block,
         "layers of a transformer of each level, or of one for all; the middle has the last level's");
  option("only_cross_attention", only_cross_attention,
         "1: the places of a level see the text alone; 0: one another too; of each level, or of one for all");
  option(
      "use_linear_projection", use_linear_projection,
      "in files the maps before and behind a transformer are linear, not convolutions of one place; the same numbers");
  option("upcast_attention", upcast_attention, "where precision is lower, attention is computed in fp32");
  option("norm_num_groups", norm_num_groups, "of channels, in every norm of maps; divides those of each level")
      .between(1, most::kWidth);
  option("norm_eps", norm_eps, "of every norm of maps but a transformer's").above(0);
  option("flip_sin_to_cos", flip_sin_to_cos, "a time's features are cosines and then sines, not the other way round");
  option("freq_shift", freq_shift, "frequency i of n is 10000^(-i / (n - this))").between(0, most::kWidth);
  option("resnet_time_scale_shift", resnet_time_scale_shift,
         "the condition is added in residual blocks (\"default\"), or scales and shifts (\"scale_shift\")")
      .one_of({kDefault, kScaleShift});
  option(
      "class_embed_type", class_embed_type,
      "what \"label\" is: a row of a table of num_class_embeds (\"none\"), a \"timestep\", or numbers that are added "
      "to the time as they are (\"identity\") or mapped (\"projection\")")
      .one_of({kNone, kTimestep, kIdentity, kProjection});
  option("num_class_embeds", num_class_embeds, "rows of the table of classes; 0: there are no classes")
      .between(0, most::kClasses);
  option("addition_embed_type", addition_embed_type,
         "\"text_time\": the pooled text and the features of \"time_ids\" are mapped and added to the time")
      .one_of({kNone, kTextTime});
  option("addition_time_embed_dim", addition_time_embed_dim, "features of each of time_ids").between(0, most::kWidth);
  option("projection_class_embeddings_input_dim", projection_class_embeddings_input_dim,
         "numbers that are mapped: of the label, or of pooled text and time_ids; 0: of six time_ids")
      .between(0, most::kWidth);
  option("pixels", pixels,
         "of a decoded picture, along a side of one of the model's: where the data has no time_ids, they are those of "
         "the whole picture")
      .between(1, most::kSide);
  option("dropout", dropout, "of what the last convolution of each residual block is given, while training")
      .between(0, 0.999);
  text.read(option);

  option.only_if(has_text_time(), {"addition_time_embed_dim", "pixels"}, "is of addition_embed_type = \"text_time\"");
  option.only_if(has_text_time() || class_embed_type == kProjection, {"projection_class_embeddings_input_dim"},
                 "is of class_embed_type = \"projection\" and of addition_embed_type = \"text_time\"");
  option.only_if(class_embed_type == kNone, {"num_class_embeds"}, "is of class_embed_type = \"none\"");
  check_levels(option);
  check_heads(option);
  if (channels(0) % 2 != 0 || freq_shift >= channels(0) / 2)
    option.reject("freq_shift",
                  "= " + std::to_string(freq_shift) + " is not below half of the first level's " +
                      std::to_string(channels(0)) + " channels, which are as many features of a time",
                  "choose an even number of channels, and a smaller shift");
  if (has_text_time() &&
      (addition_time_embed_dim < 2 || addition_time_embed_dim % 2 != 0 || freq_shift >= addition_time_embed_dim / 2))
    option.reject("addition_time_embed_dim", "= " + std::to_string(addition_time_embed_dim) + " makes no features",
                  "choose an even number above twice freq_shift");
  if (class_embed_type == kProjection && projection_class_embeddings_input_dim == 0)
    option.reject("projection_class_embeddings_input_dim", "= 0, and class_embed_type = \"projection\" maps a label",
                  "say how many numbers a label has");
}

std::vector<Place> places_of(const Options& o) {
  using Way = Place::Way;
  const int64_t last = o.levels() - 1;
  std::vector<Place> places;
  std::vector<int64_t> left{o.channels(0)};  // channels of the maps that are left and not taken yet
  int64_t numbers = 1;                       // of maps that were left
  const auto transform = [&](Place& place, int64_t level, bool only_text) {
    place.heads = Options::at(o.attention_head_dim, level);
    place.layers = Options::at(o.transformer_layers_per_block, level);
    place.only_text = only_text;
  };
  const auto sees_text_only = [&](int64_t level) { return Options::at(o.only_cross_attention, level) == 1; };
  int64_t in = o.channels(0);
  for (int64_t level = 0; level <= last; ++level)
    for (int64_t j = 0; j < Options::at(o.layers_per_block, level); ++j) {
      Place place{Way::down, level, j, in, o.channels(level)};
      if (o.down_block_types[static_cast<size_t>(level)] == Options::kDownText)
        transform(place, level, sees_text_only(level));
      place.halves = level < last && j + 1 == Options::at(o.layers_per_block, level);
      place.leaves = numbers;
      numbers += place.halves ? 2 : 1;
      left.insert(left.end(), place.halves ? 2 : 1, place.out);
      places.push_back(place);
      in = place.out;
    }
  for (int64_t j = 0; j < 2; ++j) {
    Place place{Way::middle, 0, j, in, in};
    if (j == 0) transform(place, last, false);
    places.push_back(place);
  }
  for (int64_t k = 0; k <= last; ++k) {
    const int64_t level = last - k, layers = Options::at(o.layers_per_block, level) + 1;
    for (int64_t j = 0; j < layers; ++j) {
      Place place{Way::up, k, j, in + left.back(), o.channels(level)};
      left.pop_back();
      place.takes = static_cast<int64_t>(left.size());
      if (o.up_block_types[static_cast<size_t>(k)] == Options::kUpText) transform(place, level, sees_text_only(level));
      place.doubles = level > 0 && j + 1 == layers;
      places.push_back(place);
      in = place.out;
    }
  }
  return places;
}

}  // namespace unet_sd
