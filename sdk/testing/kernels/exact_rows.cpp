// A row's promise to be exact. Whatever the op is, its reference shows by which dims a call may be cut so that the
// parts' results are the whole's, or add up to them: there the row has to give the same bits.
#include <optional>

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <ditto/error.h>

#include "kernels/kernel_answers.h"
#include "numbers.h"

namespace ditto::testing {

using torch::Tensor;

namespace {

constexpr double kNear = 1e-9;  // of the reference, in fp64
constexpr int kThreads = 3;
constexpr int64_t kMany = 3;  // times the samples, so that there is work for several threads

using Dims = std::map<size_t, int64_t>;  // which tensors are cut, each along which dim
using Same = std::function<bool(const Tensor& a, const Tensor& b)>;

// A call and its parts: some of its tensors are cut along a dim of each, the others are whole in every part.
struct Cut {
  std::string name;
  OpInputs whole;
  std::vector<OpInputs> parts;
  std::vector<int64_t> lengths;  // of the parts, along every dim that is cut
  Dims along;
  std::optional<int64_t> outputs;  // the dim, from the end where it is negative; none: the whole's are the parts' sums
};

class Threads {
 public:
  explicit Threads(int count) : before_(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

OpInputs with(OpInputs inputs, const std::string& attribute, const Attribute& value) {
  inputs.attributes[attribute] = value;
  return inputs;
}

Tensor piece(const Tensor& x, int64_t dim, int64_t first, int64_t length) {
  return x.detach().narrow(dim, first, length).clone().requires_grad_(x.requires_grad());
}

Cut cut_of_call(std::string name, OpInputs whole, Dims along, std::optional<int64_t> outputs,
                std::vector<int64_t> lengths) {
  Cut cut{std::move(name), std::move(whole), {}, std::move(lengths), std::move(along), outputs};
  int64_t first = 0;
  for (const int64_t length : cut.lengths) {
    OpInputs part = cut.whole;
    for (const auto& [i, dim] : cut.along) part.tensors[i] = piece(part.tensors[i], dim, first, length);
    cut.parts.push_back(moved(part, at::kCPU, at::kFloat));
    first += length;
  }
  return cut;
}

Tensor sum(const std::vector<Tensor>& parts) {
  Tensor all = parts.at(0);
  for (size_t i = 1; i < parts.size() && all.defined(); ++i) all = parts[i].defined() ? all + parts[i] : Tensor();
  return all;
}

// Of which tensors that are whole in all parts the parts' gradients have to add up to the whole's.
using AddsUp = bool (*)(const Tensor& x);
bool all(const Tensor&) { return true; }
bool none(const Tensor&) { return false; }
// What has tokens of its own, as an attention's keys, may sum over them in another order.
bool all_without_tokens(const Tensor& x) { return x.dim() <= 2; }

// Where the parts' results are not the whole's; empty: nowhere.
std::string difference_of(const Cut& cut, const Compute& compute, bool with_gradient, AddsUp adds_up,
                          const Same& same) {
  const auto dim_of = [&](const Tensor& out) { return *cut.outputs < 0 ? *cut.outputs + out.dim() : *cut.outputs; };
  const auto whole = answer(compute, cut.whole, with_gradient ? own_grad : GradOf());
  std::vector<Answer> parts;
  int64_t first = 0;
  for (size_t p = 0; p < cut.parts.size(); first += cut.lengths[p++]) {
    const GradOf grad = [&](size_t k, const Tensor&) {
      const Tensor& out = whole.outputs.at(k);
      const Tensor all = own_grad(k, out.detach());
      return cut.outputs ? all.narrow(dim_of(out), first, cut.lengths[p]).contiguous() : all;
    };
    parts.push_back(answer(compute, cut.parts[p], with_gradient ? grad : GradOf()));
  }
  constexpr int64_t kSum = -1;  // in the place of a dim
  const auto all_of = [&](const Tensor& found, int64_t dim, const auto& of_part) -> bool {
    std::vector<Tensor> pieces;
    int64_t at = 0;
    for (size_t p = 0; p < parts.size(); at += cut.lengths[p++]) {
      pieces.push_back(of_part(parts[p]));
      if (dim == kSum) continue;
      if (!found.defined() || !pieces.back().defined()) {
        if (found.defined() != pieces.back().defined()) return false;
        continue;
      }
      if (!same(found.narrow(dim, at, cut.lengths[p]), pieces.back())) return false;
    }
    return dim != kSum || same(found, sum(pieces));
  };
  for (size_t k = 0; k < whole.outputs.size(); ++k) {
    const int64_t dim = cut.outputs ? dim_of(whole.outputs[k]) : kSum;
    if (!all_of(whole.outputs[k], dim, [&](const Answer& part) { return part.outputs.at(k); }))
      return "output " + std::to_string(k);
  }
  for (size_t i = 0; i < whole.grads.size(); ++i) {
    const auto it = cut.along.find(i);
    if (!whole.grads[i].defined() || (it == cut.along.end() && !adds_up(cut.whole.tensors[i]))) continue;
    const int64_t dim = it == cut.along.end() ? kSum : it->second;
    if (!all_of(whole.grads[i], dim, [&](const Answer& part) { return part.grads.at(i); }))
      return "the gradient of input " + std::to_string(i);
  }
  return {};
}

// Tensors that may be cut together along a dim: those that are as long there as the first, or one by itself.
std::vector<Dims> candidates(const OpInputs& in, int64_t dim) {
  std::vector<Dims> list(1);
  const Tensor& first = in.tensors.at(0);
  for (size_t i = 0; i < in.tensors.size(); ++i) {
    const Tensor& x = in.tensors[i];
    if (!x.defined() || x.dim() <= dim) continue;
    if (first.dim() > dim && x.size(dim) == first.size(dim)) list[0][i] = dim;
    list.push_back({{i, dim}});
  }
  return list;
}

class ExactTest {
 public:
  ExactTest(const KernelRow& row, const std::vector<Op>& added)
      : row_(row), table_({row}, {{row.op, GivenOption{row.variant, "the test"}}}, {}, added), op_(table_.op(row.op)) {}

  std::string run() {
    for (const Op::Case& one : op_.cases) {
      auto in = moved(one.inputs(at::kFloat), at::kCPU, at::kFloat);
      if (row_.knows.count("token_leaf")) in.attributes.try_emplace("token_leaf", int64_t{4});
      with_gradient_ = row_.backward != nullptr;
      if (with_gradient_ && !computes(in)) with_gradient_ = false;
      if (!computes(in)) continue;
      const auto problem = tried(in);
      if (!problem.empty()) return "case \"" + one.name + "\": " + problem;
    }
    return {};
  }

 private:
  bool computes(const OpInputs& in) const {
    try {
      (void)bits(in);
      return true;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::config) throw;
      return false;
    }
  }
  Tensors computed(const OpInputs& in) const { return table_.run(op_.name, in); }

  // Of outputs, gradients, and what is updated in place.
  Tensors bits(const OpInputs& numbers) const {
    const auto in = laid_again(numbers);
    const auto found =
        answer([this](const OpInputs& of) { return computed(of); }, in, with_gradient_ ? own_grad : GradOf());
    Tensors all = found.outputs;
    all.insert(all.end(), found.grads.begin(), found.grads.end());
    all.insert(all.end(), in.tensors.begin(), in.tensors.end());
    return all;
  }
  // Leaves without a gradient yet, with the strides that they had.
  static OpInputs laid_again(const OpInputs& numbers) {
    OpInputs in{{}, numbers.attributes};
    const torch::NoGradGuard no_grad;
    for (const Tensor& x : numbers.tensors) {
      in.tensors.push_back(x.defined() ? torch::empty_strided(x.sizes(), x.strides(), x.options().requires_grad(false))
                                       : x);
      if (x.defined()) in.tensors.back().copy_(x.detach()).requires_grad_(x.requires_grad());
    }
    return in;
  }

  std::string tried(const OpInputs& in) const {
    const auto batch = as_batch(in);
    const auto many = batch ? repeated(in, *batch, kMany) : in;
    if (auto found = by_threads(many); !found.empty()) return found;
    const auto expected = bits(in);
    for (const Strides strides : kOtherStrides)
      if (const auto found = differing(expected, laid(in, strides)); !found.empty())
        return "with tensors that are " + to_text(strides) + ", " + found + " has other bits";
    if (batch) {
      const auto found = broken(cut_of_call("a batch of 1 against 3", of_three(in, *batch), *batch, 0, {1, 1, 1}),
                                has_leaves() ? all : none);
      if (!found.empty()) return found;
    }
    const bool is_one = batch || in.tensors.at(0).dim() == 0 || in.tensors[0].size(0) == 1;
    const auto one = batch ? first_of(in, *batch) : in;
    if (auto found = by_tokens(one, is_one && has_leaves() ? all_without_tokens : none); !found.empty()) return found;
    return by_lists(one);
  }
  bool has_leaves() const { return row_.knows.count("token_leaf") > 0; }

  std::string by_threads(const OpInputs& in) const {
    if (!computes(in)) return {};
    Tensors one;
    {
      const Threads threads(1);
      one = bits(in);
    }
    const Threads threads(kThreads);
    const auto found = differing(one, in);
    return found.empty() ? "" : "by " + std::to_string(kThreads) + " threads, " + found + " has other bits than by one";
  }

  std::string differing(const Tensors& expected, const OpInputs& in) const {
    Tensors found;
    try {
      found = bits(in);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::config) throw;
      return {};
    }
    for (size_t i = 0; i < expected.size(); ++i)
      if (!same_bits(found.at(i), expected[i]))
        return "tensor " + std::to_string(i) + " of outputs, gradients and inputs";
    return {};
  }

  // --- cuts ---

  // By the op's meaning.
  bool holds(const Cut& cut) const {
    Cut wide = cut;
    wide.whole = moved(cut.whole, at::kCPU, at::kDouble);
    for (auto& part : wide.parts) part = moved(part, at::kCPU, at::kDouble);
    try {
      return difference_of(wide, op_.reference, with_gradient_, all,
                           [](const Tensor& a, const Tensor& b) {
                             if (!a.defined() || !b.defined()) return a.defined() == b.defined();
                             return difference(a, b, kNear).empty();
                           })
          .empty();
    } catch (const std::exception&) {  // parts of another cut make no sense
      return false;
    }
  }
  std::string broken(const Cut& cut, AddsUp adds_up) const {
    if (!holds(cut)) return {};
    try {
      const auto where = difference_of(
          cut, [this](const OpInputs& in) { return computed(in); }, with_gradient_, adds_up, same_bits);
      return where.empty() ? "" : cut.name + ": " + where + " has other bits";
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::config) throw;
      return {};  // the row cannot compute these
    }
  }

  static OpInputs first_of(const OpInputs& in, const Dims& along) {
    OpInputs one = in;
    for (const auto& [i, dim] : along) one.tensors[i] = piece(in.tensors[i], dim, 0, 1);
    return moved(one, at::kCPU, at::kFloat);
  }
  // Three samples like the first.
  static OpInputs of_three(const OpInputs& in, const Dims& along) {
    OpInputs three = in;
    for (const auto& [i, dim] : along) {
      const Tensor one = piece(in.tensors[i], dim, 0, 1).detach();
      three.tensors[i] =
          one.is_floating_point() ? torch::cat({one, one * 0.75, one * 1.25}, dim) : torch::cat({one, one, one}, dim);
      three.tensors[i].requires_grad_(in.tensors[i].requires_grad());
    }
    return moved(three, at::kCPU, at::kFloat);
  }
  static OpInputs repeated(const OpInputs& in, const Dims& along, int64_t times) {
    OpInputs many = of_three(in, along);
    for (const auto& [i, dim] : along) {
      const Tensor x = many.tensors[i];
      many.tensors[i] = torch::cat(std::vector<Tensor>(static_cast<size_t>(times), x.detach()), dim)
                            .requires_grad_(x.requires_grad());
    }
    return many;
  }

  // The tensors that have a row a sample, where the case shows that there may be several.
  std::optional<Dims> as_batch(const OpInputs& in) const {
    for (const auto& along : candidates(in, 0)) {
      if (along.empty() || in.tensors[along.begin()->first].size(0) < 2) continue;
      if (holds(cut_of_call("", of_three(in, along), along, 0, {1, 1, 1}))) return along;
    }
    return {};
  }

  std::string by_tokens(const OpInputs& in, AddsUp adds_up) const {
    for (const auto& along : candidates(in, 1)) {
      if (along.count(0) == 0) continue;
      const int64_t tokens = in.tensors[0].size(1), leaf = (tokens + 2) / 3;
      if (tokens < 2) continue;
      std::vector<int64_t> lengths;
      for (int64_t left = tokens; left > 0; left -= leaf) lengths.push_back(std::min(leaf, left));
      auto whole = moved(in, at::kCPU, at::kFloat);
      if (has_leaves()) whole.attributes["token_leaf"] = leaf;
      if (auto found = broken(cut_of_call("leaves of tokens by themselves", whole, along, 1, lengths), adds_up);
          !found.empty())
        return found;
    }
    return {};
  }

  // Of a product: leaves of what is summed, and of what its backward sums.
  std::string by_lists(const OpInputs& in) const {
    for (const char* list : {"in_leaves", "out_leaves"}) {
      if (!op_.optional.count(list) || !row_.knows.count(list) || in.tensors.size() < 2 || in.tensors[1].dim() != 2)
        continue;
      const bool is_in = std::string(list) == "in_leaves";
      auto whole = moved(in, at::kCPU, at::kFloat);
      whole.attributes.erase(is_in ? "out_leaves" : "in_leaves");
      const int64_t size = whole.tensors[1].size(is_in ? 1 : 0);
      if (size % 2 != 0) continue;
      Dims along{{1, is_in ? 1 : 0}};
      if (is_in) along[0] = whole.tensors[0].dim() - 1;
      if (whole.tensors.size() > 2 && whole.tensors[2].defined()) {
        if (is_in)
          whole.tensors[2] = Tensor();  // added once
        else
          along[2] = 0;
      }
      auto cut = cut_of_call(std::string("leaves of ") + list, with(whole, list, std::vector<int64_t>{2, size}), along,
                             is_in ? std::nullopt : std::optional<int64_t>(-1), {size / 2, size / 2});
      for (auto& part : cut.parts) part = with(part, list, std::vector<int64_t>{1, size / 2});
      if (auto found = broken(cut, all); !found.empty()) return found;
    }
    return {};
  }

  const KernelRow& row_;
  OpTable table_;
  const Op& op_;
  bool with_gradient_ = false;
};

}  // namespace

std::string broken_exactness(const KernelRow& row, const std::vector<Op>& added) { return ExactTest(row, added).run(); }

}  // namespace ditto::testing
