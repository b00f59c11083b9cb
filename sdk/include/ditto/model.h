// A model: single-device mathematics in units, which the host runs in order
//     condition, tokens, block 0 … block depth-1, head
// A model never mentions ranks, devices or process groups, and never carries a token count from one tensor to another:
// it uses flatten and unflatten on the last dim, and leaves frames, rows and packs to ctx.attention.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ditto/batch.h>
#include <ditto/context.h>
#include <ditto/nn.h>
#include <ditto/nn/attention_unit.h>
#include <ditto/units.h>

namespace ditto {

// What the recipe's other parts offer a model, and ask of it.
struct DITTO_API ModelNeeds {
  TensorSpecs inputs;        // by name: "x" [C, H, W] or, of video, [C, F, H, W]; "t"; and what data, encoders and the
                             // objective make ("label", whose `values` are the classes; "text" [S, E])
  int64_t out_channels = 0;  // C, or 2 C where the schedule learns a variance

  const std::vector<int64_t>& shape(const std::string& name) const;  // throws Error(config) that lists what there is
  int64_t values(const std::string& name) const;                     // of an index; 0: it is not offered
  int64_t width(const std::string& name) const;                      // its last dim; 0: it is not offered
};

class DITTO_API Model : public Units {
 public:
  static constexpr const char* kKind = "model";
  static constexpr std::uint32_t kAbi = 14;
  using Needs = ModelNeeds;
  Model();
  ~Model() override;

  // --- the units, in order. The context's `compute` is the dtype to work in. ---
  virtual Conditioning condition(const Batch& batch, Context& ctx) = 0;  // all that is per sample
  virtual Stream tokens(const Batch& batch, Context& ctx) = 0;           // x -> tokens; sets x_BTD, grid, packing
  virtual void constants(const Batch&, Stream&, Context&) {}             // rotary tables; default: none
  virtual int64_t depth() const = 0;
  virtual Stream run_block(int64_t index, Stream stream, Context& ctx) = 0;  // a pure function
  virtual torch::Tensor head(const Stream& stream, Context& ctx) = 0;        // the prediction, [B, out_channels, H, W]

  // --- what the host asks ---
  virtual TensorSpecs takes() const = 0;  // the named inputs it takes from a Batch
  // What it hands out besides its prediction: "features" [T, D], the tokens after a block; any other name is a field of
  // Stream::extra that the head finds, and of one sample here ("moments" of an autoencoder's latents). Default: nothing
  // that others may ask for.
  virtual TensorSpecs makes() const { return {}; }
  // Blocks mix tokens through ctx.attention alone. Default false: token cuts are refused by name.
  virtual bool token_local() const { return false; }
  // "t" may have a time for each frame of a video, [B, F]: condition then makes cond_BD of frames. Default false:
  // refused by name.
  virtual bool time_per_frame() const { return false; }
  // The same batch with the null condition, for guidance and for dropout; `which` [B] bool: only there. Default:
  // unchanged.
  virtual Batch without_condition(Batch batch, const torch::Tensor& which_B) const;
  // Learned tables of positions, by parameter: [rows, columns, D], [frames, rows, columns, D] or [n, D]. A training
  // that starts from a model of another size may interpolate them.
  virtual std::vector<std::string> position_tables() const { return {}; }

  // Parameters of fixed tables that are no leaf (position tables), for counts that papers print.
  virtual int64_t fixed_parameters() const { return 0; }

  // The tokens normed and modulated, as the first block's attention sees them, [B, T, D], before any block ran: by it
  // caches tell how like an evaluation is to the one before (TeaCache, arXiv:2411.19108). Computed as a part of block
  // 0. A model that has it names "modulated_input" in makes(). Default: it has none.
  virtual torch::Tensor modulated_input(const Stream&, Context&) { return {}; }
};

}  // namespace ditto

#define DITTO_MODEL_PLUGIN(CLASS, ID, VERSION, LICENCE, SUMMARY) \
  DITTO_PLUGIN(Model, CLASS, ID, VERSION, LICENCE, SUMMARY)
