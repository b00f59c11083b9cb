#include <ditto/nn/transformer_size.h>

#include <ditto/math/sizes.h>

namespace ditto {

void TransformerSize::read(OptionReader& option, const std::vector<TransformerSize>& published, const char* help) {
  read_size(option, published, help);
  option("mlp_ratio", mlp_ratio, "hidden width of the MLP over D").between(1, most::kMlpRatio);
  if (width % 4 != 0)
    option.reject("width", "= " + std::to_string(width) + " is not a multiple of 4", "the position table needs it");
}

void TransformerSize::read_size(OptionReader& option, const std::vector<TransformerSize>& published, const char* help) {
  std::vector<std::string> names{""};
  for (const auto& size : published) names.push_back(size.preset);
  option("preset", preset, help).one_of(names);
  for (const auto& size : published)
    if (size.preset == preset) *this = size;
  option("depth", depth, "number of transformer blocks").between(1, most::kBlocks);
  auto given = attention();
  given.read_width(option);
  width = given.width, heads = given.heads;
  option("patch", patch, "patch side P, in the model's input pixels").between(1, most::kPatch);
}

void TransformerSize::read_keys(OptionReader& option) {
  auto given = attention();
  given.read_keys(option);
  kv_heads = given.kv_heads, qk_norm = given.qk_norm;
}

AttentionOptions TransformerSize::attention() const {
  AttentionOptions options{width, heads};
  options.kv_heads = kv_heads, options.qk_norm = qk_norm;
  return options;
}

void TransformerSize::read_frames(OptionReader& option) {
  option("patch_frames", patch_frames, "of videos: frames Q of a patch").between(1, most::kPatch);
}

std::vector<TransformerSize> dit_sizes() {
  const std::vector<TransformerSize> bodies{
      {"S", 12, 384, 6}, {"B", 12, 768, 12}, {"L", 24, 1024, 16}, {"XL", 28, 1152, 16}};
  std::vector<TransformerSize> sizes;
  for (const auto& body : bodies)
    for (const int64_t patch : {2, 4, 8}) {
      sizes.push_back(body);
      sizes.back().preset += "/" + std::to_string(patch);
      sizes.back().patch = patch;
    }
  return sizes;
}

}  // namespace ditto
