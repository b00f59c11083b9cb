#include "tests/matrix/unet_forms.h"

#include <map>

namespace ditto::matrix {

namespace {

// A residual block, and what is behind it.
struct Step {
  int64_t channels, side;
  int64_t takes = 0;      // skips that it uses, the last that were left
  int64_t sublayers = 0;  // attentions and MLPs behind it
  bool leaves = false;    // a skip, which is what it makes
  int64_t side_then = 0;  // of the map that is made of it; 0: none is
  bool leaves_then = false;
};

// A map that is a skip is one tensor, and is sent once.
std::vector<UnetBlock> blocks_of(std::vector<int64_t> live, const std::vector<Step>& steps) {
  std::vector<UnetBlock> blocks;
  for (const auto& step : steps) {
    live.resize(live.size() - static_cast<size_t>(step.takes));
    int64_t map = step.channels * step.side * step.side;
    UnetBlock block{std::vector<int64_t>(static_cast<size_t>(1 + step.sublayers), map), {}};
    bool is_skip = step.leaves;
    if (step.leaves) live.push_back(map);
    if (step.side_then > 0) {
      map = step.channels * step.side_then * step.side_then;
      is_skip = step.leaves_then;
      if (step.leaves_then) live.push_back(map);
    }
    block.border = live;
    if (!is_skip) block.border.push_back(map);
    blocks.push_back(std::move(block));
  }
  return blocks;
}

constexpr int64_t kTextTokens = 6;

}  // namespace

const Unet* unet_of(const std::string& model) {
  static const std::map<std::string, Unet> kAll{
      {"unet_sd",
       {.blocks =
            blocks_of({32 * 64},
                      {{.channels = 32, .side = 8, .sublayers = 3, .leaves = true, .side_then = 4, .leaves_then = true},
                       {.channels = 64, .side = 4, .leaves = true},
                       {.channels = 64, .side = 4, .sublayers = 3},
                       {.channels = 64, .side = 4},
                       {.channels = 64, .side = 4, .takes = 1},
                       {.channels = 64, .side = 4, .takes = 1, .side_then = 8},
                       {.channels = 32, .side = 8, .takes = 1, .sublayers = 3},
                       {.channels = 32, .side = 8, .takes = 1, .sublayers = 3}}),
        .condition = 4 * 32,
        .text = kTextTokens * 24}},
      {"imagen_unet",
       {.blocks =
            blocks_of({64 * 64}, {{.channels = 64, .side = 8, .leaves = true, .side_then = 4, .leaves_then = true},
                                  {.channels = 128, .side = 4, .sublayers = 1, .leaves = true},
                                  {.channels = 128, .side = 4, .sublayers = 1},
                                  {.channels = 128, .side = 4},
                                  {.channels = 128, .side = 4, .takes = 1, .sublayers = 1},
                                  {.channels = 128, .side = 4, .takes = 1, .sublayers = 1, .side_then = 8},
                                  {.channels = 64, .side = 8, .takes = 1},
                                  {.channels = 64, .side = 8, .takes = 1}}),
        .condition = 4 * 64,
        .text = kTextTokens * 64,
        .text_learns = true,
        .mask = kTextTokens}},
      {"imagen_efficient_unet",
       {.blocks = blocks_of({}, {{.channels = 64, .side = 8, .leaves = true, .side_then = 4},
                                 {.channels = 64, .side = 4, .leaves = true},
                                 {.channels = 128, .side = 4, .sublayers = 3},
                                 {.channels = 64, .side = 4, .sublayers = 3},
                                 {.channels = 64, .side = 4, .takes = 1, .side_then = 8},
                                 {.channels = 64, .side = 8, .takes = 1, .side_then = 16}}),
        .condition = 4 * 64,
        .text = kTextTokens * 64,
        .text_learns = true,
        .mask = kTextTokens}}};
  const auto found = kAll.find(model);
  return found == kAll.end() ? nullptr : &found->second;
}

}  // namespace ditto::matrix
