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

#include <ditto/context.h>
#include <ditto/foreign.h>

namespace ditto {

// Every parameter belongs to exactly one unit.
struct Unit {
  enum class Kind { condition, tokens, block, head } kind;
  int64_t block = -1;  // its index, for kind block
  friend auto operator<=>(const Unit&, const Unit&) = default;
  static constexpr Kind condition = Kind::condition, tokens = Kind::tokens, head = Kind::head;
};
DITTO_API std::string to_text(const Unit& unit);

// What the recipe's other parts ask of a model. Shapes are of one sample.
struct ModelSpec {
  std::vector<int64_t> x;    // [C, H, W], or [C, F, H, W] for video
  int64_t out_channels = 0;  // C, or 2 C where the schedule learns a variance
  int64_t classes = 0;       // 0: no labels
  int64_t text_width = 0;    // 0: no text
};

// A foreign checkpoint's tensor as ours: names, and the shape it has there. Row blocks of a fused weight come from
// several.
struct ForeignTensor {
  std::string ours;
  std::vector<std::string> theirs;  // one; or several, put one under another along dim 0 to make ours
  std::vector<int64_t> shape;       // theirs' shape, if not ours (a convolution's weight, say); empty: the same
};
struct ForeignFormat {
  std::vector<ForeignTensor> tensors;
  // Theirs that hold the same values as another of theirs, by name (an embedder kept once a block): copy -> the one we
  // read.
  std::map<std::string, std::string> copies;
  // Written on export and checked on import, not learned (position tables).
  std::map<std::string, torch::Tensor> constants;
  // What their program makes the model from (config.json). Empty: it reads no such file.
  ForeignConfig config = {};
};

class DITTO_API Model : public Layer {
 public:
  static constexpr const char* kKind = "model";
  using Needs = ModelSpec;
  Model();
  ~Model() override;

  // --- the units, in order. The context's `compute` is the dtype to work in. ---
  virtual Conditioning condition(const Batch& batch, Context& ctx) = 0;  // all that is per sample
  virtual Stream tokens(const Batch& batch, Context& ctx) = 0;           // x -> tokens; sets x_BTD, grid, packing
  virtual void constants(const Batch&, Stream&, Context&) {}             // rotary tables; default: none
  virtual int64_t depth() const = 0;
  virtual Stream run_block(int64_t index, Stream stream, Context& ctx) = 0;  // a pure function
  virtual torch::Tensor head(const Stream& stream, Context& ctx) = 0;        // -> [B, out_channels, H, W]

  // --- what the host asks ---
  virtual std::vector<TensorSpec> spec() const = 0;  // the named inputs it takes from a Batch
  // Blocks mix tokens through ctx.attention alone. Default false: token cuts are refused by name.
  virtual bool token_local() const { return false; }
  // The same batch with the null condition, for guidance and for dropout; `which` [B] bool: only there. Default:
  // unchanged.
  virtual Batch without_condition(Batch batch, const torch::Tensor& which_B) const;
  // Floating-point operations of one forward of this batch (a multiply-add is two). For throughput figures.
  virtual double flops(const Batch& batch) const = 0;
  // "facebook-dit", "diffusers": how another project's checkpoint names this model. Throws Error(config) if unknown.
  virtual ForeignFormat foreign(const std::string& format) const;
  virtual std::vector<std::string> foreign_formats() const { return {}; }
  // Learned tables of positions, by parameter: [rows, columns, D], [frames, rows, columns, D] or [n, D]. A training
  // that starts from a model of another size may interpolate them.
  virtual std::vector<std::string> position_tables() const { return {}; }

  // Parameters of fixed tables that are no leaf (position tables), for counts that papers print.
  virtual int64_t fixed_parameters() const { return 0; }

  // The unit of every parameter, by its full name.
  std::map<std::string, Unit> units() const;

 protected:
  // Makes a module of this unit; its parameters are NAME.….
  template <class T, class... Args>
  std::shared_ptr<T> add(Unit::Kind unit, const std::string& name, Args&&... args) {
    auto module = std::make_shared<T>(std::forward<Args>(args)...);
    adopt(unit, name, module);
    return module;
  }
  // Makes block `index`; its parameters are blocks.INDEX.…. Blocks are added in order.
  template <class T, class... Args>
  std::shared_ptr<T> add_block(int64_t index, Args&&... args) {
    auto module = std::make_shared<T>(std::forward<Args>(args)...);
    adopt_block(index, module);
    return module;
  }
  Linear linear(Unit::Kind unit, const std::string& name, int64_t in, int64_t out, Split split = {});
  Linear zero_linear(Unit::Kind unit, const std::string& name, int64_t in, int64_t out, Split split = {});

 private:
  void adopt(Unit::Kind unit, const std::string& name, std::shared_ptr<torch::nn::Module> module);
  void adopt_block(int64_t index, std::shared_ptr<torch::nn::Module> module);
  std::map<std::string, Unit> unit_of_child_;
  std::shared_ptr<torch::nn::Module> blocks_;
};

// Fills every parameter by its full name, global shape and Init. Called once by the host, before anything is cut.
DITTO_API void initialise(Model& model, const Random& random);

}  // namespace ditto

#define DITTO_MODEL_PLUGIN(CLASS, ID, VERSION, LICENCE, SUMMARY) \
  DITTO_PLUGIN(Model, CLASS, ID, VERSION, LICENCE, SUMMARY)
