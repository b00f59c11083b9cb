#include <ditto/exchange/autoencoder_names.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include <torch/types.h>

#include <ditto/math/sizes.h>

namespace ditto {

namespace {

// How a format calls what AutoencoderBlock makes.
struct Words {
  std::string parts;                         // of layers, as ForeignNames has them
  std::string down, up, layer, half, twice;  // "encoder." DOWN stage "." LAYER number
  std::string middle0, middle1, attention, norm;
  bool ups_from_pixels;  // counts stages of the way up from the one of pixels
};

Words words_of(const std::string& format) {
  if (format == "ldm")
    return {"norm1=norm1 conv1=conv1 norm2=norm2 conv2=conv2 past=nin_shortcut norm=norm qkv=q+k+v proj=proj_out",
            "down.",
            "up.",
            "block.",
            "downsample.conv",
            "upsample.conv",
            "mid.block_1",
            "mid.block_2",
            "mid.attn_1",
            "norm_out",
            true};
  return {
      "norm1=norm1 conv1=conv1 norm2=norm2 conv2=conv2 past=conv_shortcut norm=group_norm qkv=to_q+to_k+to_v "
      "proj=to_out.0",
      "down_blocks.",
      "up_blocks.",
      "resnets.",
      "downsamplers.0.conv",
      "upsamplers.0.conv",
      "mid_block.resnets.0",
      "mid_block.resnets.1",
      "mid_block.attentions.0",
      "conv_norm_out",
      false};
}

std::string block(int64_t index) { return "blocks." + std::to_string(index) + "."; }

std::string layers_of(const std::string& ours, const std::string& theirs, int64_t count) {
  std::string list;
  for (int64_t j = 0; j < count; ++j) list += ours + std::to_string(j) + "=" + theirs + std::to_string(j) + " ";
  return list;
}

// Before they were those of every other attention (huggingface/diffusers 0.15).
void add_former(ForeignFormat& format, const std::string& attention) {
  const std::pair<const char*, const char*> layers[] = {
      {"to_q", "query"}, {"to_k", "key"}, {"to_v", "value"}, {"to_out.0", "proj_attn"}};
  for (const auto& [now, then] : layers)
    for (const std::string end : {".weight", ".bias"})
      format.former[attention + "." + now + end] = attention + "." + then + end;
}

ForeignConfig config_of(const AutoencoderSize& size, int64_t pictures, int64_t side) {
  const auto stages = static_cast<size_t>(size.stages());
  ForeignConfig config{{"_class_name", autoencoder_classes().front()},
                       {"in_channels", pictures},
                       {"out_channels", pictures},
                       {"down_block_types", std::vector<std::string>(stages, "DownEncoderBlock2D")},
                       {"up_block_types", std::vector<std::string>(stages, "UpDecoderBlock2D")},
                       {"block_out_channels", size.channels},
                       {"layers_per_block", size.layers},
                       {"act_fn", "silu"},
                       {"latent_channels", size.latent},
                       {"norm_num_groups", size.groups},
                       {"use_quant_conv", size.quant},
                       {"use_post_quant_conv", size.post_quant},
                       {"mid_block_add_attention", size.middle_attention}};
  if (side > 0) config["sample_size"] = side;
  return config;
}

// Tensors that a size shows in.
struct Places {
  std::string stages, first, layers, conv;  // STAGES number FIRST, LAYERS number CONV
  std::string in, out, quant, post_quant, attention;
};

Places places_in(const ForeignShapes& file) {
  if (file.format.empty()) {
    const int64_t middle = file.count("blocks.", ".down0.conv1.weight", most::kBlocks);
    return {"blocks.",
            ".down0.conv1.weight",
            "blocks.0.down",
            ".conv1.weight",
            "blocks.0.in.weight",
            block(middle) + "out.weight",
            block(middle) + "quant.weight",
            block(middle + 1) + "post_quant.weight",
            block(middle) + "attention.qkv.weight"};
  }
  require_format(file.format, autoencoder_formats());
  const auto words = words_of(file.format);
  const auto encoder = std::string("encoder."), stages = encoder + words.down;
  return {stages,
          "." + words.layer + "0.conv1.weight",
          stages + "0." + words.layer,
          ".conv1.weight",
          encoder + "conv_in.weight",
          encoder + "conv_out.weight",
          "quant_conv.weight",
          "post_quant_conv.weight",
          encoder + words.attention + (file.format == "ldm" ? ".norm.weight" : ".group_norm.weight")};
}

}  // namespace

ForeignFormat autoencoder_names(const Units& of, const AutoencoderSize& size, int64_t pictures, int64_t side,
                                const std::string& format) {
  require_format(format, autoencoder_formats());
  const auto words = words_of(format);
  ForeignNames n(of, words.parts);
  const auto way = [&](int64_t index, const std::string& theirs, const std::string& list) {
    n.layers(block(index), theirs, list);
  };
  const auto middle = "middle0=" + words.middle0 + " attention=" + words.attention + " middle1=" + words.middle1 + " ";
  const auto leave = "norm=" + words.norm + " out=conv_out";
  const int64_t stages = size.stages(), down = size.middle(), up = down + 1;
  way(0, "encoder.", "in=conv_in");
  for (int64_t i = 0; i < stages; ++i)
    way(i, "encoder." + words.down + std::to_string(i) + ".",
        layers_of("down", words.layer, size.layers) + "half=" + words.half);
  way(down, "encoder.", middle + leave);
  way(down, "", "quant=quant_conv");
  way(up, "", "post_quant=post_quant_conv");
  way(up, "decoder.", "in=conv_in " + middle);
  for (int64_t k = 0; k < stages; ++k)
    way(up + 1 + k, "decoder." + words.up + std::to_string(words.ups_from_pixels ? stages - 1 - k : k) + ".",
        layers_of("up", words.layer, size.layers + 1) + "twice=" + words.twice);
  way(up + stages, "decoder.", leave);
  const int64_t width = size.channels.back();
  if (format == "ldm") {  // their maps of places are convolutions
    n.shape("blocks.#.attention.qkv", {width, width, 1, 1});
    n.shape("blocks.#.attention.proj", {width, width, 1, 1});
  } else {
    for (const std::string half : {"encoder.", "decoder."}) add_former(n.format, half + words.attention);
    n.format.config = config_of(size, pictures, side);
  }
  return n.format;
}

ForeignAutoencoder::ForeignAutoencoder(const ForeignShapes& file)
    : options{"channels", "layers", "latent", "middle_attention", "quant", "post_quant"} {
  const auto at = places_in(file);
  pictures = file.size(at.in, 1, most::kNumbers);
  const int64_t stages = file.count(at.stages, at.first, most::kBlocks);
  size.channels.clear();
  for (int64_t i = 0; i < stages; ++i)
    size.channels.push_back(file.size(at.stages + std::to_string(i) + at.first, 0, most::kWidth));
  size.layers = file.count(at.layers, at.conv, most::kBlocks);
  const int64_t moments = file.size(at.out, 0, 2 * most::kWidth);
  if (moments % 2 != 0)
    refuse_tensor(file, at.out, "makes " + std::to_string(moments) + " channels, no mean and variance");
  size.latent = moments / 2;
  size.quant = file.has(at.quant), size.post_quant = file.has(at.post_quant);
  size.middle_attention = file.has(at.attention);
  if (file.config.count("norm_num_groups") != 0) {
    size.groups = file.number("norm_num_groups", most::kWidth);
    options.emplace_back("groups");
  } else {
    for (const auto count : size.channels) size.groups = std::gcd(size.groups, count);
  }
  expect_config(file, config_of(size, pictures, 0));
}

void ForeignAutoencoder::require_groups(const OptionReader& reader, const ForeignShapes& file) const {
  if (size.groups == AutoencoderSize().groups || file.config.count("norm_num_groups") != 0) return;
  const auto& list = reader.declared();
  const bool is_said =
      std::any_of(list.begin(), list.end(), [](const OptionInfo& one) { return one.given && one.name == "groups"; });
  if (!is_said)
    reader.reject("groups", "is said by nobody: " + file.file + " has no config.json beside it that does",
                  "set groups, into which channels are cut in every norm");
}

}  // namespace ditto
