// Ops and the kernels that compute them.
//
// An op has a name, a reference on ATen (differentiable, always there, score 1), test cases and a tolerance per dtype.
// A kernel plugin offers rows for any op, and may add ops; the highest score wins, once for each distinct call. Kernels
// see no autograd: the SDK wraps a row's forward and backward once.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include <torch/types.h>

#include <ditto/options.h>
#include <ditto/visibility.h>

namespace ditto {

using Tensors = std::vector<torch::Tensor>;

using Attribute = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>>;

// What an op is called with: tensors (some may be undefined, as the op's signature says) and attributes by name.
struct DITTO_API OpInputs {
  Tensors tensors;
  std::map<std::string, Attribute> attributes = {};

  const torch::Tensor& tensor(size_t index) const;  // undefined beyond the last
  bool has(const std::string& name) const { return attributes.count(name) != 0; }
  double number(const std::string& name) const;  // these throw Error(plugin) for one that is missing or of another type
  double number(const std::string& name, double otherwise) const;
  int64_t whole(const std::string& name) const;
  bool flag(const std::string& name) const;  // false where it is missing
  const std::vector<int64_t>& list(const std::string& name) const;
};

// A call as a choice sees it: all shapes, dtypes, strides and attributes, no tensor's numbers.
struct DITTO_API OpCall {
  const std::string& op;
  const OpInputs& inputs;
  at::ScalarType dtype;   // of the first tensor
  at::DeviceType device;  // of the first tensor, or the one that shapes alone stand for
  bool grad;              // a backward will be asked for
  // "norm_modulate bf16 cpu [4096, 384] grad": leading dims of the first tensor multiplied to a power of two, and its
  // last dim.
  std::string text() const;
};

// One way to compute an op.
struct KernelRow {
  std::string op;
  std::string variant;                      // "cpu_simd"
  std::function<int(const OpCall&)> score;  // 0: cannot; the reference has 1. A function of the call alone.
  std::function<Tensors(const OpInputs& inputs)>
      forward;  // the op's outputs first, then what backward needs besides inputs
  // Gradients of the inputs' tensors (undefined for what has none) from the outputs' gradients, the inputs and
  // forward's result. None: fit for calls without grad only.
  std::function<Tensors(const Tensors& grads, const OpInputs& inputs, const Tensors& results)> backward;
  // What forward gives of inputs without numbers (of the meta device): tensors of the same shapes and dtypes, on
  // theirs, so that memory is counted right. None: the reference stands for it there.
  std::function<Tensors(const OpInputs& inputs)> shapes = {};
  // The op's optional attributes that it knows. A call with another one (a pack's lengths, causal) is not offered to
  // it.
  std::set<std::string> knows = {};
  // Its results' bits follow from the inputs' numbers alone: not from threads, tiles, instruction set, or how many
  // samples a call has. Only such rows compute under run.numerics = "one".
  bool exact = false;
  // Copies tensors whose strides are others than a contiguous one's before it computes: lists of rows say so.
  bool copies = false;
  // Whether backward reads the first output, results[0]. Else it is undefined there, and is not kept for it.
  bool reads_output = true;
  // Whether backward takes the outputs' gradients however they lie. Else it is given contiguous ones.
  bool any_gradient = false;
  // Where the first output takes more room than work: makes it again, by the same bits, from some of the inputs (the
  // others are undefined there) and forward's other results. Then a row that takes it does not keep it either, and has
  // it made again in its own backward. None: it is kept. Such a row's backward does not read it.
  std::function<torch::Tensor(const OpInputs& inputs, const Tensors& results)> again = {};
  std::set<size_t> again_of = {};  // those inputs
  // As backward, where an input is a parameter whose gradients are being added up: sums[i] is that sum, where it is
  // defined, of the input's shape, and backward_onto may add to it the gradient of input i, which is then undefined in
  // what it gives. None: autograd adds. Not called where deterministic algorithms are on, nor where anything else looks
  // at the gradient.
  std::function<Tensors(const Tensors& grads, const OpInputs& inputs, const Tensors& results, const Tensors& sums)>
      backward_onto = {};
};

// One op: its meaning.
struct Op {
  std::string name;
  std::string signature;  // for people: "x [B,T,D], shift [S,D], scale [S,D], sample [T] or none; eps -> [B,T,D]"
  std::vector<std::string> contains;  // of a composite: the ops it is made of
  std::function<Tensors(const OpInputs&)> reference;
  struct Case {
    std::string name;
    std::function<OpInputs(at::ScalarType)> inputs;  // requires_grad set where a gradient is defined
  };
  std::vector<Case> cases;
  // Largest error allowed for a variant in this dtype, over the largest number of the fp64 reference.
  std::function<double(at::ScalarType)> tolerance;
  int64_t outputs = 1;                  // the reference's
  std::set<std::string> optional = {};  // attributes that a call may leave out
  // Ops whose results are opaque (statistics of a partial attention) are computed by one variant all: `leader` is the
  // op whose call decides which; of the leader it is its own name. They are called by OpTable::run_as, without
  // autograd. A variant has rows for all of them, or none.
  std::string leader = {};
  // Of a leader, for tests: something of a case's inputs that every variant must agree on, made by its ops.
  using RunOp = std::function<Tensors(const std::string& op, const OpInputs& inputs)>;
  std::function<Tensors(const OpInputs& inputs, const RunOp& run)> use = {};
  std::string added_by = {};  // set by the host: the plugin
};

// What a kernel set has chosen beyond rows (a library's algorithms), by what it was chosen for: lines without dots.
using KernelChoices = std::map<std::string, std::string>;

// A kernel plugin.
class DITTO_API KernelSet {
 public:
  static constexpr const char* kKind = "kernels";
  static constexpr std::uint32_t kAbi = 11;
  static constexpr Effect kEffect = Effect::bits;
  struct Needs {
    KernelChoices kept = {};  // in the run that is gone on with, as `kept` gave it
  };
  virtual ~KernelSet();
  virtual std::vector<KernelRow> rows() const = 0;
  virtual std::vector<Op> ops() const { return {}; }  // that it adds
  // All that bits depend on and a resumed run is to go on with: what it was given, and what its rows have chosen since.
  // Checkpoints and run.toml have it. None: nothing is ever chosen. Called from any thread.
  virtual std::optional<KernelChoices> kept() const { return std::nullopt; }
};

// The ops the SDK defines.
DITTO_API const std::vector<Op>& ops();

// The ops and rows of a run, and the choice among them.
class DITTO_API OpTable {
 public:
  // `pins`: op -> variant, from [kernels]; a pin that names nothing throws Error(config). `added`: ops besides the
  // SDK's; one that is there twice throws Error(plugin). `exact`: only exact rows compute, and no reference does.
  explicit OpTable(std::vector<KernelRow> rows = {}, std::map<std::string, GivenOption> pins = {},
                   std::function<void(const std::string&)> log = {}, std::vector<Op> added = {}, bool exact = false);
  ~OpTable();
  OpTable(const OpTable&) = delete;
  OpTable& operator=(const OpTable&) = delete;

  bool has(const std::string& op) const { return ops_.count(op) != 0; }
  const Op& op(const std::string& name) const;  // throws Error(config), naming the nearest
  bool exact() const { return exact_; }

  // Computes `name`, with autograd: the op's outputs. A pinned variant that cannot answer throws Error(config), as does
  // a call that no exact row can compute where only these may; an op that is asked for a gradient and has none,
  // Error(plugin).
  Tensors run(const std::string& name, const OpInputs& inputs) const;
  // Of a composite, for who would call its parts otherwise: whether a variant other than the reference is there for
  // this call. A pin of the op decides; where a part of it alone is pinned, that is meant, and the answer is no.
  bool serves(const std::string& composite, const OpInputs& inputs) const;
  // Where the parts of a composite have to be called whatever there is for it: throws Error(config) where a variant of
  // it is pinned. `why`: "on a processor".
  void refuse_pin(const std::string& composite, const std::string& why) const;
  // Of a leader: the variant for this call. And an op of its family computed by that variant.
  std::string variant(const std::string& leader, const OpInputs& inputs) const;
  Tensors run_as(const std::string& variant, const std::string& name, const OpInputs& inputs) const;

  // "norm_modulate bf16 cpu [4096, 384] grad" -> "cpu_simd": every choice made so far, for run.toml and logs. Calls
  // that differ in other ways may have led to several.
  std::map<std::string, std::string> chosen() const;

  // The device whose rows are chosen for inputs of the meta device.
  at::DeviceType meta_stands_for = at::kMeta;

  // For who looks on, and changes nothing: is told of every op that `run` has computed. None: nobody. Set by the host
  // while nothing is computed.
  using Watch = std::function<void(const std::string& op, const OpInputs& inputs, const Tensors& outputs)>;
  void watch(Watch watch) { watch_ = std::move(watch); }

 private:
  void add_ops(std::vector<Op> added);
  void check_rows() const;
  void check_pins() const;
  std::vector<std::string> variants_of(const std::string& op) const;
  const KernelRow* row_of(const std::string& op, const std::string& variant) const;
  OpCall call_of(const std::string& op, const OpInputs& inputs) const;
  bool offers(const KernelRow& row, const OpCall& call) const;
  const KernelRow* choose(const Op& op, const OpCall& call) const;  // nullptr: the reference
  const KernelRow* best_of(const OpCall& call, const std::string& pinned) const;
  bool computes(const OpInputs& inputs, const OpCall& like, bool grad) const;
  [[noreturn]] void refuse(const Op& op, const OpCall& call) const;

  std::map<std::string, const Op*> ops_;
  std::vector<std::unique_ptr<const Op>> added_;
  std::vector<KernelRow> rows_;
  std::map<std::string, GivenOption> pins_;
  std::function<void(const std::string&)> log_;
  bool exact_;
  mutable std::mutex mutex_;
  mutable std::unordered_map<std::string, const KernelRow*> choices_;      // by all that a score may see
  mutable std::map<std::string, std::set<std::string>> variants_by_call_;  // by OpCall::text
  Watch watch_;
};

}  // namespace ditto
