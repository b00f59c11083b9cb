#include <ditto/transformer_size.h>

#include <algorithm>

#include <ditto/sizes.h>

namespace ditto {

namespace {

void require_heads(const OptionReader& option, int64_t width, int64_t heads) {
  if (width % heads == 0) return;
  int64_t below = std::min(heads, width), above = below;  // the divisors nearest to what was asked for
  while (width % below != 0) --below;
  while (width % above != 0) ++above;
  option.reject("heads", "= " + std::to_string(heads) + " does not divide model.width = " + std::to_string(width),
                "use " + std::to_string(below) + (above == below ? "" : " or " + std::to_string(above)));
}

}  // namespace

void TransformerSize::read(OptionReader& option, const std::vector<TransformerSize>& published, const char* help) {
  std::vector<std::string> names{""};
  for (const auto& size : published) names.push_back(size.preset);
  option("preset", preset, help).one_of(names);
  for (const auto& size : published)
    if (size.preset == preset) *this = size;
  option("depth", depth, "number of transformer blocks").between(1, most::kBlocks);
  option("width", width, "token width D").between(4, most::kWidth);
  option("heads", heads, "attention heads N; must divide the width").between(1, most::kHeads);
  option("patch", patch, "patch side P, in the model's input pixels").between(1, most::kPatch);
  option("mlp_ratio", mlp_ratio, "hidden width of the MLP over D").between(1, most::kMlpRatio);
  require_heads(option, width, heads);
  if (width % 4 != 0)
    option.reject("width", "= " + std::to_string(width) + " is not a multiple of 4", "the position table needs it");
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
