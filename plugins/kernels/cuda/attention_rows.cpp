// Attention by cuDNN, and by FlashAttention 2 (T. Dao, 2023, arXiv:2307.08691), as LibTorch has both.
//
// cuDNN's backward adds with atomics: it is not chosen where deterministic algorithms are on, under which
// FlashAttention's gives its bits again. q, k and v may be parts of one tensor. Of packs, and of keys under a mask,
// only what counts is computed: samples of any length follow one another, and hidden keys are left out.
//
// Legend: B rows, T queries, S keys, N heads, M heads of keys and values, K head width, P samples.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <mutex>

#include <ATen/Context.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>

#include <ditto/upload.h>

#include "rows.h"

namespace ditto_cuda {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

double scale_of(const OpInputs& in) {
  return in.number("scale", 1 / std::sqrt(static_cast<double>(in.tensor(0).size(-1))));
}

// As both read heads: a row's numbers follow one another, and 16 bytes divide where rows begin.
Tensor heads(const Tensor& x) {
  bool fits = x.stride(-1) == 1 && reinterpret_cast<std::uintptr_t>(x.const_data_ptr()) % 16 == 0;
  for (int64_t d = 0; d + 1 < x.dim(); ++d) fits = fits && x.stride(d) % 8 == 0;
  return fits ? x.detach() : laid(x);
}

bool is_attention(const OpCall& call, int64_t most_width) {
  const auto& in = call.inputs;
  const Tensor &q = in.tensor(0), &k = in.tensor(1), &mask = in.tensor(3);
  if (!fits(call) || call.dtype == torch::kFloat || q.dim() != 4 || k.dim() != 4) return false;
  if (mask.defined() && (mask.scalar_type() != torch::kBool || mask.dim() != 2)) return false;
  return q.numel() > 0 && k.size(2) > 0 && q.size(2) % k.size(2) == 0 && q.size(3) % 8 == 0 && q.size(3) <= most_width;
}
// Both count a causal query's keys from the last one, the op from the first.
bool counts_places(const OpInputs& in) {
  const bool same = in.tensor(0).size(1) == in.tensor(1).size(1) && !in.has("key_lengths");
  return !in.flag("causal") || (same && !in.tensor(3).defined());
}

int64_t longest(const std::vector<int64_t>& list) { return *std::max_element(list.begin(), list.end()); }

// Where each of a pack's samples begins, and where the last one ends: [P + 1], on the GPU. Layers ask for the same ones
// one after another, of queries and of keys.
class Starts {
 public:
  Tensor of(const std::vector<int64_t>& lengths, const Tensor& like) {
    const std::lock_guard lock(mutex_);
    const auto stream = stream_of(like);
    for (const auto& one : last_)
      if (one.starts.defined() && one.lengths == lengths && one.stream == stream &&
          one.starts.device() == like.device())
        return one.starts;
    const Tensor starts = torch::zeros({static_cast<int64_t>(lengths.size()) + 1}, torch::kInt);
    int* const at = starts.data_ptr<int>();
    for (size_t i = 0; i < lengths.size(); ++i) at[i + 1] = at[i] + static_cast<int>(lengths[i]);
    auto& place = last_[next_++ % last_.size()];
    place = {lengths, stream, ditto::uploaded(starts, like.device())};
    return place.starts;
  }

 private:
  struct Known {
    std::vector<int64_t> lengths;
    Stream stream;
    Tensor starts;
  };
  std::mutex mutex_;
  std::array<Known, 4> last_;
  size_t next_ = 0;
};

// Queries and keys as FlashAttention takes them: whole rows [B, T, N, K], or samples of any length, one after another
// [B T, N, K].
struct Sequences {
  Sequences(Starts& known, const OpInputs& in, size_t first = 0) : mask(in.tensor(first + 3)) {
    const Tensor &q_BTNK = in.tensor(first), &k_BSMK = in.tensor(first + 1), &v_BSMK = in.tensor(first + 2);
    T = q_BTNK.size(1), S = k_BSMK.size(1);
    q = heads(q_BTNK), k = heads(k_BSMK), v = heads(v_BSMK);
    if (!in.has("lengths") && !mask.defined()) return;
    const std::vector<int64_t> rows(static_cast<size_t>(q.size(0)), T), key_rows(rows.size(), S);
    const auto& lengths = in.has("lengths") ? in.list("lengths") : rows;
    const auto& key_lengths = in.has("key_lengths") ? in.list("key_lengths") : in.has("lengths") ? lengths : key_rows;
    T = longest(lengths), S = longest(key_lengths);
    starts = known.of(lengths, q), key_starts = known.of(key_lengths, q);
    q = q.flatten(0, 1), k = k.flatten(0, 1), v = v.flatten(0, 1);
    if (mask.defined()) leave_out();
  }
  bool in_samples() const { return starts.defined(); }
  // Of tensors of the op's shapes, as q is.
  Tensor as_queries(const Tensor& x_BTNK) const { return in_samples() ? x_BTNK.flatten(0, 1) : x_BTNK; }
  Tensor as_given(const Tensor& x, const Tensor& like) const { return x.view(like.sizes()); }
  // A gradient of keys or values; what is hidden has none.
  Tensor of_keys(const Tensor& x, const Tensor& like) const {
    if (!seen.defined()) return x.view(like.sizes());
    const Tensor out = torch::empty_like(x);
    out.index_copy_(0, order, x);
    return out.masked_fill_(seen.bitwise_not().view({-1, 1, 1}), 0).view(like.sizes());
  }

  Tensor q, k, v, starts, key_starts;
  int64_t T, S;  // the longest

 private:
  // Keys that are seen come first, in their order; how many there are the GPU alone knows.
  void leave_out() {
    const int64_t rows = k.size(0);
    seen = mask.expand({rows / mask.size(1), mask.size(1)}).reshape({rows});
    order = std::get<1>(seen.to(torch::kByte).sort(/*stable=*/true, 0, /*descending=*/true));
    const Tensor before = torch::zeros({rows + 1}, key_starts.options());
    Tensor after_first = before.narrow(0, 1, rows);
    torch::cumsum_out(after_first, seen, 0, torch::kInt);
    key_starts = before.index_select(0, key_starts);
    k = k.index_select(0, order), v = v.index_select(0, order);
  }
  Tensor mask, seen, order;
};

std::optional<Tensor> maybe(const Tensor& x) { return x.defined() ? std::optional(x) : std::nullopt; }

// The output as q lies, log-sum-exp [B, N, T] or [N, B T], and two tensors that backward is given.
Tensors flash(const Sequences& s, bool causal, double scale) {
  const auto [out, lse, random, unused, mask] =
      at::_flash_attention_forward(s.q, s.k, s.v, maybe(s.starts), maybe(s.key_starts), s.T, s.S, /*dropout_p=*/0,
                                   causal, /*return_debug_mask=*/false, scale);
  return {out, lse, random, unused};
}
Tensors flash_back(const Sequences& s, const Tensor& grad, const Tensors& results, const OpInputs& in, size_t first) {
  const auto [dq, dk, dv] = at::_flash_attention_backward(
      s.as_queries(heads(grad)), s.q, s.k, s.v, s.as_queries(results[0]), results[1], s.starts, s.key_starts, s.T, s.S,
      /*dropout_p=*/0, in.flag("causal"), results[2], results[3], scale_of({{in.tensor(first)}, in.attributes}));
  return {s.as_given(dq, in.tensor(first)), s.of_keys(dk, in.tensor(first + 1)), s.of_keys(dv, in.tensor(first + 2))};
}

Tensor of_lse(const Tensor& q_BTNK, bool in_samples) {
  const int64_t B = q_BTNK.size(0), T = q_BTNK.size(1), N = q_BTNK.size(2);
  return in_samples ? room({N, B * T}, q_BTNK) : room({B, N, T}, q_BTNK);
}

Tensors cudnn(const OpInputs& in) {
  const auto turned = [&](size_t i) { return heads(in.tensor(i)).transpose(1, 2); };
  const auto all = at::_scaled_dot_product_cudnn_attention(
      turned(0), turned(1), turned(2), std::nullopt,
      /*compute_log_sumexp=*/true, /*dropout_p=*/0, in.flag("causal"), /*return_debug_mask=*/false, scale_of(in));
  return {std::get<0>(all).transpose(1, 2), std::get<1>(all), std::get<6>(all), std::get<7>(all)};
}
Tensors cudnn_back(const Tensors& grads, const OpInputs& in, const Tensors& results) {
  const auto turned = [](const Tensor& x) { return heads(x).transpose(1, 2); };
  const auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
      turned(grads[0]), turned(in.tensor(0)), turned(in.tensor(1)), turned(in.tensor(2)), results[0].transpose(1, 2),
      results[1], results[2], results[3], Tensor(), Tensor(), Tensor(), in.tensor(0).size(1), in.tensor(1).size(1),
      /*dropout_p=*/0, in.flag("causal"), scale_of(in));
  return {dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)};
}

}  // namespace

KernelRow cudnn_attention() {
  KernelRow row{"attention", "cuda_cudnn"};
  row.score = [](const OpCall& call) {
    const auto& in = call.inputs;
    if (!is_attention(call, /*most_width=*/128) || at::globalContext().deterministicAlgorithms()) return 0;
    const Tensor &q = in.tensor(0), &k = in.tensor(1);
    const bool whole = !in.tensor(3).defined() && !in.tensor(4).defined() && q.size(1) > 1 && k.size(1) > 1;
    return whole && q.size(2) == k.size(2) && counts_places(in) ? kScore + 5 : 0;
  };
  row.forward = cudnn;
  row.backward = cudnn_back;
  row.shapes = [](const OpInputs& in) -> Tensors {
    const Tensor& q = in.tensor(0);
    const Tensor seed = torch::empty({}, q.options().dtype(torch::kLong).requires_grad(false));
    return {room(q.sizes(), q, q.scalar_type()), of_lse(q, false).unsqueeze(-1), seed, torch::empty_like(seed)};
  };
  row.knows = {"scale", "causal"};
  return row;
}

KernelRow flash_attention() {
  KernelRow row{"attention", "cuda_flash"};
  row.score = [](const OpCall& call) {
    const auto& in = call.inputs;
    if (!is_attention(call, /*most_width=*/256) || in.tensor(1).size(1) == 0 || in.tensor(4).defined()) return 0;
    // Samples of one query each have their heads turned about by LibTorch, whose log-sum-exp then lies otherwise.
    const bool single = (in.has("lengths") ? longest(in.list("lengths")) : in.tensor(0).size(1)) <= 1;
    const bool turned_about = single && in.tensor(0).size(2) != in.tensor(1).size(2);
    return counts_places(in) && !turned_about ? kScore : 0;
  };
  const auto starts = std::make_shared<Starts>();
  row.forward = [starts](const OpInputs& in) {
    auto results = flash(Sequences(*starts, in), in.flag("causal"), scale_of(in));
    results[0] = results[0].view(in.tensor(0).sizes());
    return results;
  };
  row.backward = [starts](const Tensors& grads, const OpInputs& in, const Tensors& results) {
    return flash_back(Sequences(*starts, in), grads[0], results, in, 0);
  };
  row.shapes = [](const OpInputs& in) -> Tensors {
    const Tensor& q = in.tensor(0);
    const auto bits = q.options().dtype(torch::kUInt64).requires_grad(false);
    return {room(q.sizes(), q, q.scalar_type()), of_lse(q, in.has("lengths") || in.tensor(3).defined()),
            torch::empty({2}, bits), torch::empty({}, bits)};
  };
  row.knows = {"scale", "causal", "lengths", "key_lengths"};
  return row;
}

// Partial results are as the reference has them, which merges and finishes them: the output in fp32, and log-sum-exp
// [B, T, N], -inf where a query sees no key (FlashAttention says +inf).
std::vector<KernelRow> flash_attention_in_pieces() {
  const auto reference = [](const std::string& name) {
    for (const auto& op : ditto::ops())
      if (op.name == name) return op.reference;
    throw ditto::Error(ditto::ErrorKind::plugin, "kernels cuda", "the SDK has no op " + name, "use them together");
  };
  const auto starts = std::make_shared<Starts>();
  const auto row = [](const char* op) {
    KernelRow row{op, "cuda_flash"};
    row.score = [](const OpCall& call) {
      const auto& in = call.inputs;
      return is_attention(call, 256) && !in.tensor(4).defined() && !in.tensor(6).defined() &&
                     (in.tensor(0).size(1) > 1 || in.tensor(0).size(2) == in.tensor(1).size(2))
                 ? kScore
                 : 0;
    };
    row.knows = {"scale"};
    return row;
  };
  auto partial = row("attention_partial"), merge = row("attention_merge"), finish = row("attention_finish"),
       back = row("attention_backward");
  partial.forward = [starts](const OpInputs& in) -> Tensors {
    const Tensor& q = in.tensor(0);
    const int64_t B = q.size(0), T = q.size(1), N = q.size(2);
    if (in.tensor(1).size(1) == 0)
      return {torch::zeros(q.sizes(), q.options().dtype(torch::kFloat)),
              torch::full({B, T, N}, -kInfinity, q.options().dtype(torch::kFloat))};
    const Sequences s(*starts, in);
    const auto results = flash(s, false, scale_of(in));
    const Tensor lse = s.in_samples() ? results[1].view({N, B, T}).permute({1, 2, 0}) : results[1].transpose(1, 2);
    return {results[0].view(q.sizes()).to(torch::kFloat), lse.masked_fill(lse.isinf(), -kInfinity)};
  };
  merge.forward = reference("attention_merge");
  finish.forward = reference("attention_finish");
  back.forward = [starts](const OpInputs& in) -> Tensors {
    const Sequences s(*starts, in, 1);
    const Tensor &out = in.tensor(8), lse_BTN = in.tensor(9).masked_fill(in.tensor(9).isinf(), kInfinity);
    const Tensor lse = s.in_samples() ? lse_BTN.flatten(0, 1).t().contiguous() : lse_BTN.transpose(1, 2).contiguous();
    const Tensor none = torch::empty({2}, lse.options().dtype(torch::kUInt64));
    return flash_back(s, in.tensor(0), {heads(out), lse, none, none[0]}, in, 1);
  };
  return {partial, merge, finish, back};
}

}  // namespace ditto_cuda
