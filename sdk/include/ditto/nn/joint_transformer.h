// Transformers in which text and picture have weights of their own and one attention (MM-DiT): P. Esser et al.,
// "Scaling rectified flow transformers for high-resolution image synthesis", 2024 (arXiv:2403.03206), as Stable
// Diffusion 3 has it, and Black Forest Labs' Flux.1 in its first blocks. ditto.h does not include it.
//
// Legend: B samples, T tokens of the picture here, S tokens of text, D width, K head width.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ditto/exchange/foreign.h>
#include <ditto/model.h>
#include <ditto/nn/joins.h>
#include <ditto/nn/padded_text.h>
#include <ditto/nn/patches.h>
#include <ditto/nn/transformer_size.h>

namespace ditto {

// What such a model's Options derive from.
struct DITTO_API JointOptions : TransformerSize {
  PaddedText text;
  std::vector<std::string> joins;
};

// Queries, keys and values of some tokens. Parameters qkv, and with qk_norm q_norm and k_norm.
class DITTO_API JointHeads : public Layer {
 public:
  // `tokens` says whose they are: Split::of(…) or side_by_side() of split(size).
  JointHeads(const TransformerSize& size, const Split& tokens);
  ~JointHeads() override;
  static Split split(const TransformerSize& size);
  // [B, T, D] -> q, k and v [B, T, heads that are here, K]
  Tensors forward(const torch::Tensor& x, Context& ctx);

  Linear qkv;

 private:
  std::shared_ptr<RmsNorm> q_norm_, k_norm_;
  int64_t head_width_;
};

// What attends to one another: the picture, turned by its places where the stream has a rotary table, and the text, its
// extra "text", which has no places, under "text_mask" where there is one. q, k and v of each -> what each has seen.
DITTO_API Tensors attend_jointly(const Tensors& picture, const Tensors& text, const Stream& stream, Context& ctx);

// Joint attention and an MLP of four times the width, in adaLN-Zero. Of each sequence, "picture." and "words.",
// parameters modulation, attn (JointHeads), proj, up, down, and second.
class DITTO_API JointBlock : public Layer {
 public:
  struct Form {
    bool second = false;     // an attention of the picture alone beside the joint one (Stable Diffusion 3.5)
    bool ends_text = false;  // nobody reads the text behind it: of its parameters there are modulation and attn
  };
  JointBlock(const TransformerSize& size, const Form& form);
  ~JointBlock() override;
  Stream forward(Stream s, Context& ctx);
  torch::Tensor modulated_input(const Stream& s, Context& ctx);  // Model::modulated_input of a first block

 private:
  struct Side;
  std::shared_ptr<Side> picture_, words_;
};

// A model of pictures "x" and texts whose first blocks are JointBlocks. The pooled text, where there is one, is added
// to the time. Parameters time, pooled_in, pooled_out, patches, text, final_modulation, out.
class DITTO_API JointTransformer : public Model {
 public:
  ~JointTransformer() override;
  Conditioning condition(const Batch& in, Context& ctx) override;
  Stream tokens(const Batch& in, Context& ctx) override;              // without positions
  void constants(const Batch& in, Stream& s, Context& ctx) override;  // the text's mask
  int64_t depth() const override;                                     // these and the next two: of the JointBlocks
  Stream run_block(int64_t index, Stream s, Context& ctx) override;
  torch::Tensor modulated_input(const Stream& s, Context& ctx) override;
  torch::Tensor head(const Stream& s, Context& ctx) override;

  bool token_local() const override { return true; }
  TensorSpecs takes() const override;
  TensorSpecs makes() const override;
  Batch without_condition(Batch in, const torch::Tensor& which_B) const override;

 protected:
  // Throws Error(config) for data without text, or that are no pictures. `name`: the plugin's.
  JointTransformer(const std::string& name, const JointOptions& options, const Needs& needs);
  void add_joint_block(const JointBlock::Form& form = {});  // behind those that there are
  // The time's vector [B, D], to which the pooled text's is added.
  virtual torch::Tensor time(const Batch& in, Context& ctx);
  // Why no published model is this one; empty: one may be.
  std::string not_theirs() const;

  Needs needs_;

 private:
  JointOptions options_;
  Joins joins_;
  std::shared_ptr<Patches> patches_;
  std::shared_ptr<TimeEmbed> time_;
  Linear pooled_in_, pooled_out_, text_, final_modulation_, out_;
  std::vector<std::shared_ptr<JointBlock>> blocks_;
};

// diffusers' names for ForeignNames, with kDiffusersParts: of all but the patches and the blocks, and of a JointBlock.
inline constexpr const char* kDiffusersJointEnds =
    "text=context_embedder time=time_text_embed.timestep_embedder guidance=time_text_embed.guidance_embedder "
    "pooled_in=time_text_embed.text_embedder.linear_1 pooled_out=time_text_embed.text_embedder.linear_2 "
    "final_modulation=norm_out.linear out=proj_out";
inline constexpr const char* kDiffusersJointBlock =
    "picture.modulation=norm1.linear picture.attn=attn picture.proj=attn.to_out.0 picture.up=ff.net.0.proj "
    "picture.down=ff.net.2 picture.second=attn2 words.modulation=norm1_context.linear "
    "words.attn.qkv=attn.add_q_proj+attn.add_k_proj+attn.add_v_proj words.attn.q_norm=attn.norm_added_q "
    "words.attn.k_norm=attn.norm_added_k words.proj=attn.to_add_out words.up=ff_context.net.0.proj "
    "words.down=ff_context.net.2";
// Of the configurations of SD3Transformer2DModel and FluxTransformer2DModel the part that is alike.
DITTO_API ForeignConfig diffusers_joint_config(const std::string& class_name, const TransformerSize& size,
                                               const ModelNeeds& needs);
// What a model of such a file needs: x, a text, and a pooled one. `text` and `pooled` are the tensors that map them.
DITTO_API ModelNeeds joint_needs_of(const ForeignShapes& file, const std::vector<int64_t>& x, int64_t out_channels,
                                    const std::string& text, const std::string& pooled);

}  // namespace ditto
