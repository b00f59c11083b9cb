// What models share that read and write other projects' weights: one way to say how parameters are called there, and
// sizes and options as a file's shapes and its config.json say them. ditto.h does not include it.
//
// Legend: D width of a token, C channels, P side and Q frames of a patch.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ditto/model.h>
#include <ditto/nn/transformer_size.h>

namespace ditto {

// --- names ---

// A model's map of names, as lists "OURS=THEIRS OURS=THEIRS+THEIRS" in which each of its parameters finds its own. OURS
// is a layer, whose weight and bias keep their ends, or a parameter by its whole name, as THEIRS then is; or a module
// whose layers are called as `parts` says: with "up=fc1 down=fc2" there, "mlp=ff" is "mlp.up=ff.fc1 mlp.down=ff.fc2".
// Several of theirs with a "+" between them are put one under another to make ours. What the model does not have (a
// bias, a class) is left out of the map; what no list names the host refuses by its name.
class DITTO_API ForeignNames {
 public:
  explicit ForeignNames(const Units& model, const std::string& parts = {});

  // Behind what all of ours, and all of theirs, begin with.
  void layers(const std::string& ours, const std::string& theirs, const std::string& list);
  // Of blocks first, first + step, … of ours, and 0, 1, … of theirs: a '#' in `ours` and `theirs` is the number.
  void blocks(int64_t count, const std::string& ours, const std::string& theirs, const std::string& list,
              int64_t first = 0, int64_t step = 1);

  // Of a layer or a parameter of ours that a list has named, in which a '#' is any number: the shape of each of theirs
  // (a bias has the first dim), and ForeignTensor::rows of all of it.
  void shape(const std::string& ours, const std::vector<int64_t>& shape);
  void rows(const std::string& ours, const std::vector<int64_t>& rows);
  // Of attention, its "qkv" of as many heads of each, its "q_norm" and "k_norm": rotary pairs lie side by side there.
  void turn_pairs(const std::string& ours, int64_t head_width);

  // A fixed table [T, D], which theirs keeps as [1, T, D], rounded to fp32.
  void table(const std::string& theirs, const torch::Tensor& table_TD);
  // Theirs that begin so with number 0, as another project keeps them in each of its blocks: copies of the first.
  void copies(int64_t count, const std::string& theirs);

  ForeignFormat format;

 private:
  std::string parts_;
  std::map<std::string, int64_t> parameters_;  // and their rows
};
// The first of theirs in such a list, of a layer or a parameter; empty: it does not name `ours`.
DITTO_API std::string foreign_name(const std::string& list, const std::string& ours, const std::string& parts = {});

// Whole projects' names of the layers of SelfAttention, CrossAttention, Mlp, TimeEmbed and their like: of diffusers; of
// DiT, after timm, and those that began with it; of NeMo and Megatron.
inline constexpr const char* kDiffusersParts =
    "qkv=to_q+to_k+to_v q=to_q kv=to_k+to_v proj=to_out.0 q_norm=norm_q k_norm=norm_k up=net.0.proj down=net.2 "
    "in=linear_1 out=linear_2";
inline constexpr const char* kFacebookParts =
    "qkv=qkv q=q_linear kv=kv_linear proj=proj q_norm=q_norm k_norm=k_norm up=fc1 down=fc2 in=mlp.0 out=mlp.2";
inline constexpr const char* kNemoParts =
    "qkv=linear_qkv q=linear_q kv=linear_kv proj=linear_proj q_norm=q_layernorm k_norm=k_layernorm in=linear_1 "
    "out=linear_2";

// Rows [first, first + count) of theirs, as they come; or, where a head has `head` rows, of each its even rows and then
// its odd ones: rotary pairs lie side by side there, and half a head apart here (apply_rotary).
struct ForeignRun {
  int64_t first, count, head = 0;
};
// ForeignTensor::rows of runs one after another.
DITTO_API std::vector<int64_t> foreign_rows(const std::vector<ForeignRun>& runs);
// Of a map to heads of K numbers that Megatron's attention fuses: there lie, group by group, heads[0] heads of the
// first kind, heads[1] of the second, …: queries that share a head of keys, that head, its values.
DITTO_API std::vector<int64_t> megatron_rows(const std::vector<int64_t>& heads, int64_t groups, int64_t K);

// Of NeMo's diffusion transformers all but the blocks, for `layers("", "", …)` with kNemoParts: a VideoTransformer's
// patches (the channel fastest), TimeAndRate as "time", FactorisedPositions as "positions", and "out".
inline constexpr const char* kNemoEnds =
    "patches.map=x_embedder time.time=t_embedder.1 time.rate=fps_embedder.1 time.norm=affline_norm "
    "positions.frames.table=pos_embedder.emb_t.weight positions.rows.table=pos_embedder.emb_h.weight "
    "positions.columns.table=pos_embedder.emb_w.weight out=final_layer_linear";

// The formats that a model of many has: `not_theirs` says why no model of a format is this one, "makes square pictures,
// and this model's are not"; empty: one is.
using NotTheirs = std::function<std::string(const std::string& format)>;
DITTO_API std::vector<std::string> formats_of(const std::vector<std::string>& known, const NotTheirs& not_theirs);
// Refuses, with the reason, a format that is not among them.
DITTO_API void require_format(const std::string& format, const std::vector<std::string>& known,
                              const NotTheirs& not_theirs = {});

// --- sizes ---

// Of a model of x [C, H, W] or [C, F, H, W] and times.
DITTO_API ModelNeeds foreign_needs_of(std::vector<int64_t> x, int64_t out_channels);
// Throws Error(checkpoint): tensor 'NAME' `what`.
[[noreturn]] DITTO_API void refuse_tensor(const ForeignShapes& file, const std::string& tensor,
                                          const std::string& what);

// The map of patches, [D, C, P, P] or [D, C, Q, P, P]. Refuses patches that are not square, and a width that is no
// multiple of 4, which position tables need.
struct ForeignPatches {
  int64_t width, channels, side, frames;
};
DITTO_API ForeignPatches patches_of(const ForeignShapes& file, const std::string& tensor);
// Rows of a tensor [rows, width].
DITTO_API int64_t rows_of(const ForeignShapes& file, const std::string& tensor, int64_t width, int64_t most);
// Rows, or columns, of a square picture's tokens, of their table [1, extras + rows * columns, width].
DITTO_API int64_t square_of(const ForeignShapes& file, const std::string& table, int64_t width, int64_t extras = 0);

// Sizes of a transformer over patches.
struct DITTO_API ForeignSizes {
  struct Names {
    std::string patches, block, up, out;  // "x.weight"; the MLP's first map is BLOCK + number + UP
    std::string classes = {};             // the table of classes and the null class, which a file may lack
  };
  ForeignSizes(const ForeignShapes& file, const Names& names);
  TransformerSize size;  // heads: 0, a file's shapes do not say them
  int64_t channels, out_channels;
  int64_t classes = 0;  // without the null class; 0: the file has none
  // Of a model of such data: x [C, side, side], or [C, frames, side, side] where there are frames.
  ModelNeeds needs(int64_t side, int64_t frames = 0) const;
};
// What NeMo's files say of a DiTCrossAttentionModel or a DiTLlamaModel, whose patches are of one frame. They have no
// configuration beside them. `attention`: "self_attention", as its layers call it.
struct DITTO_API NemoSizes {
  NemoSizes(const ForeignShapes& file, const std::string& attention);
  int64_t depth, width, hidden;     // hidden: rows of the first map of the MLP
  int64_t heads = 0, kv_heads = 0;  // 0: the file has no norms of heads, which say them; as many as heads
  int64_t text_width = 0;           // 0: no text
  int64_t frames = 0, side = 0;     // places of learned positions; 0: they are not learned
  // Of samples of any size, cut in such patches, with "fps" as the model's option says.
  ModelNeeds needs(const ForeignShapes& file, int64_t patch) const;
};
// The heads of a published size of this depth and width; 0: there is none.
DITTO_API int64_t published_heads(const std::vector<TransformerSize>& published, const TransformerSize& size);

// --- config.json ---

// What diffusers' transformers are made from, DiTTransformer2DModel and those after it: of their configurations the
// part that is alike. `side`: of the picture.
DITTO_API ForeignConfig diffusers_config(const std::string& class_name, const TransformerSize& size, int64_t channels,
                                         int64_t out_channels, int64_t side);
// Attention heads; refuses what does not divide the width.
DITTO_API int64_t heads_of(const ForeignShapes& file, const std::string& key, int64_t width);
// A real number, which may stand there as an integer. Throws Error(checkpoint).
DITTO_API double real_of(const ForeignShapes& file, const std::string& key);
// As configurations have them: an integer where it is one.
DITTO_API OptionValue number_of(double value);
// ForeignShapes::expect of every key but the class's name, which projects have changed.
DITTO_API void expect_config(const ForeignShapes& file, const ForeignConfig& expected);

// --- the recipe's options over a file's ---

// Refuses a recipe whose value of an option is not the file's.
DITTO_API void refuse_other(const OptionReader& reader, const ForeignShapes& file, const std::string& option,
                            const OptionValue& said, const OptionValue& found);
DITTO_API void refuse_others(const OptionReader& reader, const OptionReader& theirs, const ForeignShapes& file,
                             const std::vector<std::string>& names);
// Refuses a recipe that says neither "heads" nor a preset, where the file does not say them.
DITTO_API void require_heads(const OptionReader& reader, const ForeignShapes& file);

// Reads the recipe over options that the file has set; of those `names` it may say nothing else than the file.
template <class Options>
void read_over(Options& options, OptionReader& reader, const ForeignShapes& file,
               const std::vector<std::string>& names) {
  Options copy = options;
  OptionReader theirs(OptionMap{reader.section(), file.file, {}});
  copy.read(theirs);
  options.read(reader);
  refuse_others(reader, theirs, file, names);
}

// The same of options that derive from TransformerSize, whose depth and width are among those names. Heads that the
// file does not say (0) are those of a published size, or the recipe's.
template <class Options>
void read_heads_over(Options& options, OptionReader& reader, const ForeignShapes& file,
                     const std::vector<TransformerSize>& published, std::vector<std::string> names) {
  names.insert(names.end(), {"depth", "width"});
  if (options.heads > 0) names.emplace_back("heads");
  if (options.heads == 0) options.heads = published_heads(published, options);
  const bool knows_heads = options.heads > 0;
  if (!knows_heads) options.heads = 1;
  read_over(options, reader, file, names);
  if (!knows_heads) require_heads(reader, file);
}
// And its patch and mlp_ratio too.
template <class Options>
void read_sizes_over(Options& options, OptionReader& reader, const ForeignShapes& file,
                     const std::vector<TransformerSize>& published, std::vector<std::string> names) {
  names.insert(names.end(), {"patch", "mlp_ratio"});
  read_heads_over(options, reader, file, published, std::move(names));
}

}  // namespace ditto
