// A linear map that says it is exact, and is, but in one way, as its option says: sums are trees over leaves (docs,
// architecture.md), each leaf the chain of its terms.
//
// Legend: S samples, T tokens, K numbers that come in, N that come out.
#include <functional>

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <ditto/kernels.h>
#include <ditto/plugin.h>

namespace {

using ditto::OpInputs;
using ditto::Tensors;
using torch::Tensor;

struct Options {
  std::string fault = "none";
  void read(ditto::OptionReader& option) { option("fault", fault, "the promise to break"); }
};

using Number = std::function<float(int64_t)>;

// Of leaves first … last - 1.
float tree(int64_t first, int64_t last, const Number& leaf) {
  if (last - first == 1) return leaf(first);
  int64_t left = 1;
  while (2 * left < last - first) left *= 2;
  return tree(first, first + left, leaf) + tree(first + left, last, leaf);
}
float chain(int64_t first, int64_t last, const Number& term) {
  float sum = 0;
  for (int64_t i = first; i < last; ++i) sum = sum + term(i);
  return sum;
}
// In leaves of `length`.
float in_leaves(int64_t count, int64_t length, const Number& term) {
  const int64_t leaves = std::max<int64_t>(1, (count + length - 1) / length);
  return tree(0, leaves, [&](int64_t i) { return chain(i * length, std::min(count, (i + 1) * length), term); });
}
// By {leaves, width of part 0, of part 1, …}: leaf u has the u-th share of each part.
float by_list(const OpInputs& in, const char* name, int64_t count, const Number& term) {
  if (!in.has(name)) return chain(0, count, term);
  const auto& list = in.list(name);
  return tree(0, list[0], [&](int64_t u) {
    float sum = 0;
    int64_t start = 0;
    for (size_t i = 1; i < list.size(); start += list[i++]) {
      const int64_t each = list[i] / list[0];
      for (int64_t k = 0; k < each; ++k) sum = sum + term(start + u * each + k);
    }
    return sum;
  });
}

class Exact final : public ditto::KernelSet {
 public:
  using Options = ::Options;
  Exact(const Options& options, const Needs&) : fault_(options.fault) {}

  std::vector<ditto::KernelRow> rows() const override {
    ditto::KernelRow row{"linear", "faulty", {}, {}, {}};
    row.score = [](const ditto::OpCall& call) {
      return call.dtype == torch::kFloat && !call.inputs.flag("bf16") ? 5 : 0;
    };
    row.forward = [*this](const OpInputs& in) { return forward(in); };
    row.backward = [*this](const Tensors& grads, const OpInputs& in, const Tensors&) { return backward(grads[0], in); };
    row.knows = {"token_leaf", "in_leaves", "out_leaves", "bf16"};
    row.exact = row.copies = true;
    return {row};
  }

 private:
  bool is(const char* fault) const { return fault_ == fault; }

  float product(const OpInputs& in, int64_t samples, int64_t K, const Number& term) const {
    if (is("threads") && at::get_num_threads() > 1) return chain(0, K / 2, term) + chain(K / 2, K, term);
    if (is("batch") && samples > 1) return chain(0, K, [&](int64_t k) { return term(K - 1 - k); });
    if (is("strides") && !in.tensor(0).is_contiguous()) return chain(0, K, [&](int64_t k) { return term(K - 1 - k); });
    return is("inputs") ? chain(0, K, term) : by_list(in, "in_leaves", K, term);
  }

  Tensors forward(const OpInputs& in) const {
    const Tensor x = in.tensor(0).detach().contiguous(), w = in.tensor(1).detach().contiguous(),
                 b = in.tensor(2).defined() ? in.tensor(2).detach().contiguous() : Tensor();
    const int64_t K = x.size(-1), N = w.size(0), M = x.numel() / K;
    auto shape = x.sizes().vec();
    shape.back() = N;
    auto y = torch::empty(shape, torch::kFloat);
    const float *px = x.const_data_ptr<float>(), *pw = w.const_data_ptr<float>();
    for (int64_t m = 0; m < M; ++m)
      for (int64_t n = 0; n < N; ++n) {
        const float sum = product(in, x.size(0), K, [&](int64_t k) { return px[m * K + k] * pw[n * K + k]; });
        y.data_ptr<float>()[m * N + n] = b.defined() ? sum + b.const_data_ptr<float>()[n] : sum;
      }
    return {y};
  }

  // Over samples, and of each over its tokens.
  float over_rows(const OpInputs& in, int64_t samples, int64_t tokens, const Number& row) const {
    const int64_t leaf = in.has("token_leaf") ? in.whole("token_leaf") : 32;
    if (is("samples")) return chain(0, samples * tokens, row);
    return tree(0, samples, [&](int64_t s) {
      const auto of_sample = [&](int64_t t) { return row(s * tokens + t); };
      return is("leaves") ? chain(0, tokens, of_sample) : in_leaves(tokens, leaf, of_sample);
    });
  }

  Tensors backward(const Tensor& grad, const OpInputs& in) const {
    const Tensor x = in.tensor(0).detach().contiguous(), w = in.tensor(1).detach().contiguous(), g = grad.contiguous();
    const int64_t K = x.size(-1), N = w.size(0), M = x.numel() / K, S = x.size(0), T = M / S;
    const float *px = x.const_data_ptr<float>(), *pw = w.const_data_ptr<float>(), *pg = g.const_data_ptr<float>();
    Tensors back{torch::empty(x.sizes(), torch::kFloat), torch::empty({N, K}, torch::kFloat), {}};
    for (int64_t m = 0; m < M; ++m)
      for (int64_t k = 0; k < K; ++k) {
        const Number term = [&](int64_t n) { return pg[m * N + n] * pw[n * K + k]; };
        back[0].data_ptr<float>()[m * K + k] = is("outputs") ? chain(0, N, term) : by_list(in, "out_leaves", N, term);
      }
    for (int64_t n = 0; n < N; ++n)
      for (int64_t k = 0; k < K; ++k)
        back[1].data_ptr<float>()[n * K + k] =
            over_rows(in, S, T, [&](int64_t m) { return pg[m * N + n] * px[m * K + k]; });
    if (!in.tensor(2).defined()) return back;
    back[2] = torch::empty({N}, torch::kFloat);
    for (int64_t n = 0; n < N; ++n)
      back[2].data_ptr<float>()[n] = over_rows(in, S, T, [&](int64_t m) { return pg[m * N + n]; });
    return back;
  }

  std::string fault_;
};

}  // namespace

DITTO_PLUGIN(KernelSet, Exact, "faulty_exact", "1.0.0", "Apache-2.0", "says that it is exact")
