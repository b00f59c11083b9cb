// What recipes say of an st_dit, and which parts its blocks then have.
#pragma once

#include <string>
#include <vector>

#include <ditto/conditions.h>
#include <ditto/sizes.h>
#include <ditto/transformer_size.h>

namespace st_dit {

enum class Part { spatial, full, cross, temporal, mlp };

struct StDitOptions : ditto::TransformerSize {
  std::string arrangement = "joint", cross = "auto", adaln = "zero", rotary = "none", null_text = "learned";
  int64_t null_tokens = 0, base_side = 0;
  double fps = 0;
  bool full = false;

  void read(ditto::OptionReader& option) {
    TransformerSize::read(option,
                          {{"STDiT3-XL/2", 56, 1152, 16},  // 28 pairs of blocks
                           {"STDiT3-3B/2", 56, 1872, 26},
                           {"Latte-XL/2", 28, 1152, 16},
                           {"Latte-1", 56, 1152, 16}},
                          "a published size; the options below override its parts");
    read_frames(option);
    set_preset();
    read_keys(option);
    option("arrangement", arrangement,
           "of attention in a block: \"joint\" spatial, full, cross and temporal, as NeMo; \"alternating\" spatial in "
           "even blocks and temporal in odd ones, each followed by cross")
        .one_of({"joint", "alternating"});
    option("full", full, "joint: attention of all tokens of a sample, too");
    ditto::read_null_text(option, null_text);
    option("null_tokens", null_tokens, "tokens of a learned null text, an embedding each; 0: one for all places")
        .between(0, ditto::most::kSide);
    option("cross", cross, "blocks with attention to text: \"auto\" is all where the data has text, and none else")
        .one_of({"auto", "none", "spatial", "all"});
    option(
        "adaln", adaln,
        "\"zero\": each block maps the condition to its modulations; \"single\": one map for all and a table a block")
        .one_of({"zero", "single"});
    option(
        "rotary", rotary,
        "\"none\": sine-cosine tables of places and frames; \"temporal\": the frames' by rotation instead, in temporal "
        "and full attention; \"all\": no table, rotation in all self-attention")
        .one_of({"none", "temporal", "all"});
    option("base_side", base_side,
           "0: places of rows and columns are 0, 1, …; else they lie closer together the larger frames are beside this "
           "side, as STDiT3's")
        .between(0, ditto::most::kSide);
    option("fps", fps,
           "frames a second, where the data does not say \"fps\": embedded, and added to the time; 0: it is not")
        .between(0.0, 1e6);
    check(option);
  }

  std::vector<Part> parts(int64_t block, bool has_text) const {
    const bool odd = block % 2 == 1, joint = arrangement == "joint";
    std::vector<Part> list;
    if (joint || !odd) list.push_back(Part::spatial);
    if (full) list.push_back(Part::full);
    if (!joint && odd) list.push_back(Part::temporal);
    if (has_text && (joint || !odd || cross != "spatial")) list.push_back(Part::cross);
    if (joint) list.push_back(Part::temporal);
    list.push_back(Part::mlp);
    return list;
  }
  // STDiT3 has no norms of queries and keys where it attends to text.
  ditto::AttentionOptions cross_attention() const {
    auto o = attention();
    o.qk_norm = qk_norm && arrangement == "joint";
    return o;
  }
  // That are modulated: all but cross.
  int64_t sublayers() const { return arrangement == "joint" ? 3 + (full ? 1 : 0) : 2; }

 private:
  void set_preset() {
    if (preset.empty()) return;
    arrangement = "alternating";
    if (preset == "Latte-XL/2") return;
    adaln = "single";
    if (preset == "Latte-1")
      cross = "spatial", null_text = "empty";
    else
      qk_norm = true, rotary = "temporal", cross = "all", null_tokens = 300, base_side = 64, fps = 24;
  }

  void check(const ditto::OptionReader& option) const {
    if (null_tokens > 0 && null_text != "learned")
      option.reject("null_tokens", "are learned, and null_text is \"" + null_text + "\"", "change one of the two");
    if (base_side > 0 && rotary == "all")
      option.reject("base_side", "is of a table of places, which rotary = \"all\" has not", "change one of the two");
    if (full && arrangement != "joint")
      option.reject("full", "goes with arrangement = \"joint\", this is \"" + arrangement + "\"",
                    "change one of the two");
    if (arrangement == "alternating" && depth % 2 != 0)
      option.reject("depth", "= " + std::to_string(depth) + " leaves a spatial block without its temporal one",
                    "use an even number, or arrangement = \"joint\"");
    if (cross == "spatial" && arrangement == "joint")
      option.reject("cross", "= \"spatial\" goes with arrangement = \"alternating\"", "use \"all\" or \"none\"");
    if (const int64_t least = rotary == "all" ? 6 : 2;
        rotary != "none" && (head_width() % 2 != 0 || head_width() < least))
      option.reject("heads", "give heads of width " + std::to_string(head_width()),
                    "rotary = \"" + rotary + "\" needs an even width of at least " + std::to_string(least));
  }
};

}  // namespace st_dit
