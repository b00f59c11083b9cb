// What a call needs and nothing else: the op table, attention, random draws, precision and phase.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include <ditto/kernels.h>
#include <ditto/math/random.h>
#include <ditto/nn/attention.h>
#include <ditto/nn/split.h>

namespace ditto {

// What is computed for: the training itself, a validation, or samples that are made. Frozen networks, and encoders but
// for their encode(), are always in `evaluate`.
enum class Phase { train, evaluate, sample };

class Context;
class Linear;
struct AttentionUnitPart;  // nn/attention_unit.h
struct TokenLeaves;
struct Unit;  // units.h

// Who has which tokens of a sequence: of those that attention and layers that are cut see here, and of those between
// such layers. Null: all of a sample's tokens are here.
struct SlicesHere {
  std::shared_ptr<const TokenLeaves> inside, between;
};

// Under run.numerics = "one": in which leaves sums over a sample's tokens are made, and who has them.
struct DITTO_API LeavesHere : SlicesHere {
  int64_t tokens = 0;  // of a leaf; 0: numerics are "fast"
  bool bf16 = false;   // the numbers that layers multiply are rounded to bf16; all else, and what is kept, is fp32
  // Set by strategies while a block runs whose tokens they cut: beside the stream's own those of its extras that have
  // tokens of their own, by name.
  std::map<std::string, SlicesHere> others;

  // Throws Error(config) where tokens are cut and the layer maps those of several sequences (Split::side_by_side).
  SlicesHere& of(const std::string& sequence);
  // Of the sequence that has so many tokens in the whole: equally many are shared alike. The stream's own, if none has.
  const SlicesHere& of_tokens(int64_t count) const;
};

// What follows a norm of maps in the same pass: its result times (1 + scale) plus shift, both [B, C] or undefined, and
// SiLU of that.
struct AfterNorm {
  torch::Tensor shift = {}, scale = {};
  bool silu = false;
};

// How a map gets other sides: each place several times, the mean of several, or cubic convolution.
enum class Resample { nearest, mean, bicubic };

// The table's ops by name, as layers and models call them: what is more than one operation of IEEE arithmetic a number
// goes through here, so that run.numerics = "one" has an exact kernel for it. x [B, …, D] are samples, or their tokens.
// Modulations [S, D] hold one row a sample; each op spreads it over the sample's tokens, packed or not. `tokens`: of
// the stream, or of another sequence in it.
class DITTO_API Ops {
 public:
  explicit Ops(const OpTable& table) : table_(&table), leaves_(std::make_shared<LeavesHere>()) {}
  // The same ops, of what is whole on every rank that shares a sample's tokens: conditioning, text.
  Ops of_condition() const { return with(Place::condition); }
  // And of tokens as attention and layers that are cut see them.
  Ops inside() const { return with(Place::inside); }
  // And of a second sequence's tokens, Stream::extra[name]; "": the stream's own.
  Ops of(const std::string& sequence) const {
    Ops copy = *this;
    copy.sequence_ = sequence;
    return copy;
  }
  // x weight^T + bias, with weight [N, K] and bias [N] or undefined. `leaves`: of the layer's sums, where it may be
  // cut.
  torch::Tensor linear(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                       const SumLeaves& leaves = {}) const;
  torch::Tensor silu(const torch::Tensor& x) const;
  torch::Tensor gelu(const torch::Tensor& x, bool tanh = true) const;  // the tanh form, or that of the error function
  // x / sqrt(mean of x^2 + eps) * weight, over the last dim, computed and given in fp32 (fp64 of fp64). weight [K], or
  // [S, K], a row for each sample.
  torch::Tensor rms_norm(const torch::Tensor& x, const torch::Tensor& weight, double eps) const;
  // rows_SD, or a row [D] for every sample, as [S, n, D]: the gradient is each sample's sum over n in leaves of `leaf`,
  // and of a row for all the sum over samples.
  torch::Tensor spread(const torch::Tensor& rows, int64_t samples, int64_t n, int64_t leaf) const;
  torch::Tensor layer_norm(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                           double eps) const;
  // Rows of a table [R, D] for samples: int64 [B] -> [B, D].
  torch::Tensor embedding_rows(const torch::Tensor& table, const torch::Tensor& index_B) const;
  // x + row, for a learned row of x's last dims: one for all samples and tokens.
  torch::Tensor add_row(const torch::Tensor& x, const torch::Tensor& row) const;
  // [B, …] -> [B]: what losses end with.
  torch::Tensor sample_mean(const torch::Tensor& x) const;
  // Of routers: softmax along the last dim; and of x [..., K] at each of its places the sum of its row.
  torch::Tensor softmax(const torch::Tensor& x) const;
  torch::Tensor row_total(const torch::Tensor& x) const;
  // x [B, T, 2 E], each token's probabilities of E experts and then its shares in them, of whole samples -> [B]: the
  // sum over experts of mean probability times mean share.
  torch::Tensor expert_balance(const torch::Tensor& x_BTE) const;
  // LayerNorm(x) without affine, eps as given, times (1 + scale) plus shift. x [B, T, D].
  torch::Tensor norm_modulate(const torch::Tensor& x_BTD, const torch::Tensor& shift_SD, const torch::Tensor& scale_SD,
                              const Sequence& tokens, double eps = 1e-6) const;
  // x + gate * y
  torch::Tensor gated_residual(const torch::Tensor& x_BTD, const torch::Tensor& gate_SD, const torch::Tensor& y_BTD,
                               const Sequence& tokens) const;
  // GELU(up(x)), tanh form. A composite of linear and gelu_tanh.
  torch::Tensor linear_gelu_tanh(const torch::Tensor& x, const Linear& up, Context& ctx) const;
  // down(GELU(up(x))), tanh form: in one where nothing stands between the three and the device has a kernel for that.
  torch::Tensor mlp_gelu_tanh(const torch::Tensor& x, const Linear& up, const Linear& down, Context& ctx) const;
  // Maps x [B, C, …] of 1 to 3 sides, convolved with weight [N, C, kernel…]; bias [N] or undefined. One number a side:
  // of `stride`, and of the zeros `before` its first place and `after` its last. `leaves`: of the sums over channels
  // and kernel places, where the layer may be cut.
  torch::Tensor conv(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                     const std::vector<int64_t>& stride, const std::vector<int64_t>& before,
                     const std::vector<int64_t>& after, const SumLeaves& leaves = {}) const;
  // The gradient of a convolution's input as a map of its own: x [B, C, …], weight [C, N, kernel…], bias [N] or
  // undefined; a side of n places becomes (n - 1) stride + kernel - 2 padding.
  torch::Tensor conv_transposed(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                                const std::vector<int64_t>& stride, const std::vector<int64_t>& padding,
                                const SumLeaves& leaves = {}) const;
  // x [B, C, …] with other sides. `sides`: one number each, of nearest and mean the factor, of bicubic, which is of
  // pictures, the places that come out.
  torch::Tensor resample(const torch::Tensor& x, Resample kind, const std::vector<int64_t>& sides) const;
  // x [B, C, …] + rows [B, C] at every place.
  torch::Tensor add_channels(const torch::Tensor& x, const torch::Tensor& rows_BC) const;
  // GroupNorm of x [B, C, …], with weight and bias [C], and what follows it. A composite.
  torch::Tensor group_norm(const torch::Tensor& x, int64_t groups, const torch::Tensor& weight,
                           const torch::Tensor& bias, double eps, const AfterNorm& then = {}) const;
  // An op of a kernel plugin, or of the SDK, by name. Throws Error(config) where the run has no such op.
  Tensors run(const std::string& name, const OpInputs& inputs) const;
  const OpTable& table() const { return *table_; }
  LeavesHere& leaves() const { return *leaves_; }  // of all copies

 private:
  enum class Place { between, inside, condition };
  Ops with(Place place) const {
    Ops copy = *this;
    copy.place_ = place;
    return copy;
  }
  std::map<std::string, Attribute> of_tokens(std::map<std::string, Attribute> attributes = {}) const;
  // Runs the op for each node of a sample's tokens that is here: `in_tokens` are the tensors along them, and the
  // others' gradients are sums over all tokens.
  torch::Tensor by_nodes(const char* op, const OpInputs& inputs, std::vector<size_t> in_tokens) const {
    return by_nodes(op, inputs, std::move(in_tokens), leaves_->of(sequence_));
  }
  torch::Tensor by_nodes(const char* op, const OpInputs& inputs, std::vector<size_t> in_tokens,
                         const SlicesHere& slices) const;
  const OpTable* table_;
  std::shared_ptr<LeavesHere> leaves_;
  Place place_ = Place::between;
  std::string sequence_;
};

class DITTO_API Context {
 public:
  Context(std::shared_ptr<const OpTable> table, Random random);
  ~Context();

  Ops ops;
  Phase phase = Phase::train;
  at::ScalarType compute = at::kFloat;  // what layers multiply in: fp32, bf16, fp16, or fp64 for proofs
  torch::Device device{torch::kCPU};
  // How convolutions over pictures and videos lay maps before they compute, and so what comes of them: Contiguous,
  // channels first; ChannelsLast; Preserve, as they come. Set by the host (run.memory_format).
  at::MemoryFormat maps = at::MemoryFormat::Preserve;
  Random random;
  // Tokens of a leaf: under run.numerics = "one" a sum over a sample's tokens, or keys, is a tree over leaves of so
  // many. Set by the host; 0: numerics are "fast".
  int64_t& token_leaf = ops.leaves().tokens;
  // What timestep_features were made of so far, `half` and `divisor`: those of the next times are sent to a device with
  // all else that is made of these.
  std::set<std::pair<int64_t, double>> time_features;
  // For what has no exact form: throws Error(config) under run.numerics = "one", and says `what` it is ("a
  // convolution").
  void refuse_under_one(const std::string& what) const;

  // Frames, rows, packs and ranks are left to this. An output for each part, as its q.
  Tensors attention(const AttentionCall& call);
  // Of the stream's tokens alone, or of them to its text: q [B, T_local, N, K], k and v.
  torch::Tensor attention(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v, Pattern pattern,
                          const Stream& stream);
  // A whole attention sub-layer: `run` maps each part's x through its `heads`, attention and its `rows`. Some
  // strategies exchange tokens around it.
  using RunUnit = std::function<Tensors(const Tensors& x)>;
  Tensors attention_unit(std::vector<AttentionUnitPart> parts, const RunUnit& run);
  torch::Tensor attention_unit(const Linear& heads, const Linear& rows, const torch::Tensor& x,
                               const std::function<torch::Tensor(const torch::Tensor&)>& run);

  // Numbers set to zero with probability p and the others divided by 1 - p, while training; else x. x [B, T, D] are
  // whole tokens of the stream, or of its extra `sequence`, as they are between layers. Which, depends on the run's
  // seed, the sample's id, `name` (the same for no two calls of a model) and the place in the sample alone: any layout
  // leaves out the same.
  torch::Tensor dropout(const torch::Tensor& x_BTD, double p, const Stream& stream, const std::string& name,
                        const std::string& sequence = "");
  // The same of maps [B, C, …] of the samples `ids`: of their channels those that `channels` says, all of their places.
  torch::Tensor dropout(const torch::Tensor& map, double p, const std::vector<int64_t>& ids, const std::string& name,
                        const ShareHere& channels = {});

  // x [B, T_local, …] of the tokens that attention and experts see here -> [B, T, …] of whole samples, differentiable.
  // For what looks at all of a sample's tokens at once (expert choice, balance losses).
  torch::Tensor all_tokens(const torch::Tensor& x, const Stream& stream);
  // The way back: this rank's tokens of [B, T, …]; `like` is what all_tokens was given.
  torch::Tensor own_tokens(const torch::Tensor& whole, const torch::Tensor& like, const Stream& stream);

  // What `body` makes, run as a unit of an encoder: what is cut of the unit's parameters is whole inside, and nowhere
  // else.
  torch::Tensor in_unit(const Unit& unit, const std::function<torch::Tensor()>& body);
  // Set by the host: in_unit with the strategies' wraps; none: as it is.
  std::function<torch::Tensor(const Unit& unit, const std::function<torch::Tensor()>& body)> unit_wrap;

  // Where layers and attention add their floating-point operations (a multiply-add is two) of this call, by part:
  // "linear", "attention", "experts", or a model's own; null: nobody counts. With `device` meta, and parameters made
  // while a ShapesAlone lives, they compute shapes alone, and no number is read.
  std::map<std::string, double>* flops = nullptr;
  void count(const char* part, double operations) const {
    if (flops) (*flops)[part] += operations;
  }

  // Set by the host: all_tokens with the strategies' gathers.
  std::function<torch::Tensor(const torch::Tensor& x, const Stream& stream)> token_gather;
  // For tests and traces: a model tells what it decided ("experts.3": the experts of each token). None: nobody asks.
  std::function<void(const std::string& name, const torch::Tensor& value)> observe;

  // Set by the host: the attention op and the sub-layer's runner, with the strategies' wraps around them.
  AttentionOp attention_op;
  using UnitRunner = std::function<Tensors(std::vector<AttentionUnitPart>& parts, const RunUnit& run)>;
  UnitRunner unit_runner;

  torch::TensorOptions options() const { return torch::TensorOptions(compute).device(device); }

 private:
  void count_attention(const AttentionCall& call) const;
  std::shared_ptr<const OpTable> table_;  // keeps Ops' table alive
};

}  // namespace ditto
