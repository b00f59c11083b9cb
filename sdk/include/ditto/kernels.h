// Ops and the kernels that compute them.
//
// An op has a name, a reference on ATen (differentiable, always there, score 1), test cases and a tolerance per dtype.
// A kernel plugin offers further rows; the highest score wins, once for each distinct query. Kernels see no autograd:
// the SDK wraps a row's forward and backward once.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <torch/types.h>

#include <ditto/options.h>

namespace ditto {

using Tensors = std::vector<torch::Tensor>;

// What an op is called with: tensors (some may be undefined, as the op's signature says) and plain numbers.
struct OpInputs {
  Tensors tensors;
  std::vector<double> numbers = {};
};

// What a choice may depend on.
struct OpQuery {
  std::string op;
  at::ScalarType dtype = at::kFloat;
  at::DeviceType device = at::kCPU;
  std::vector<int64_t>
      shape;          // class of the first input's shape: leading dims multiplied to a power of two, and the last dim
  bool grad = false;  // a backward will be asked for
  std::string text() const;  // "norm_modulate bf16 cpu [4096, 384] grad"
};

// One way to compute an op.
struct KernelRow {
  std::string op;
  std::string variant;                       // "cpu_simd"
  std::function<int(const OpQuery&)> score;  // 0: cannot; the reference has 1
  std::function<Tensors(const OpInputs& inputs)>
      forward;  // the op's output first, then what backward needs besides inputs
  // Gradients of the inputs' tensors (undefined for what has none) from the output's gradient, the inputs and forward's
  // result. None: fit for queries without grad only.
  std::function<Tensors(const torch::Tensor& grad, const OpInputs& inputs, const Tensors& results)> backward;
  // What forward gives of inputs without numbers (of the meta device): tensors of the same shapes and dtypes, on
  // theirs, so that memory is counted right. None: the reference stands for it there.
  std::function<Tensors(const OpInputs& inputs)> shapes = {};
};

// One op: its meaning.
struct Op {
  std::string name;
  std::string signature;  // for people: "x [B,T,D], shift [S,D], scale [S,D], sample [T] or none -> [B,T,D]"
  std::vector<std::string> contains;  // of a composite: the ops it is made of
  std::function<torch::Tensor(const OpInputs&)> reference;
  struct Case {
    std::string name;
    std::function<OpInputs(at::ScalarType)> inputs;  // requires_grad set where a gradient is defined
  };
  std::vector<Case> cases;
  // Largest error allowed for a variant in this dtype, over the largest number of the fp64 reference.
  std::function<double(at::ScalarType)> tolerance;
};

// A kernel plugin.
class DITTO_API KernelSet {
 public:
  static constexpr const char* kKind = "kernels";
  static constexpr std::uint32_t kAbi = 6;
  static constexpr Effect kEffect = Effect::bits;
  struct Needs {};
  virtual ~KernelSet();
  virtual std::vector<KernelRow> rows() const = 0;
};

// The ops the SDK defines.
DITTO_API const std::vector<Op>& ops();
DITTO_API const Op& op(const std::string& name);  // throws Error(plugin), naming the nearest

// The rows of a run, and the choice among them.
class DITTO_API OpTable {
 public:
  // `pins`: op -> variant, from [kernels]; a pin that names nothing throws Error(config).
  explicit OpTable(std::vector<KernelRow> rows = {}, std::map<std::string, GivenOption> pins = {},
                   std::function<void(const std::string&)> log = {});
  ~OpTable();

  // Computes `name`, with autograd. A pinned variant that cannot answer throws Error(config).
  torch::Tensor run(const std::string& name, const OpInputs& inputs) const;

  std::vector<KernelRow> rows_of(const std::string& op) const;
  // "norm_modulate bf16 cpu [4096, 384] grad" -> "cpu_simd": every choice made so far, for run.toml and logs.
  std::map<std::string, std::string> chosen() const;
  // A row of this table, run with autograd around it: for the contract tests.
  static torch::Tensor run_row(const KernelRow& row, const OpInputs& inputs);

  // The device whose rows are chosen for inputs of the meta device.
  at::DeviceType meta_stands_for = at::kMeta;

 private:
  const KernelRow* choose(const OpQuery& query) const;  // nullptr: the reference
  std::vector<KernelRow> rows_;
  std::map<std::string, GivenOption> pins_;
  std::function<void(const std::string&)> log_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, const KernelRow*> chosen_;
};

}  // namespace ditto
