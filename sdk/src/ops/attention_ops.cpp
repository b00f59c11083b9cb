// What attention means: of whole rows, and in pieces whose results are merged (log-sum-exp as in M. Milakov and
// N. Gimelshein, 2018, arXiv:1805.02867).
//
// Legend: B rows, T queries, S keys, N heads, M heads of keys and values, K head width.
#include "ops/attention_ops.h"

#include <cmath>
#include <limits>

#include <torch/types.h>

namespace ditto {

using torch::Tensor;

namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

// N / M queries' heads share one of keys: theirs are taken as so many times as many queries of it, [B, N, T, X] ->
// [B, M, N / M * T, X], so that keys and values are never copied. And the way back.
struct Groups {
  int64_t shared, each;
  Groups(const Tensor& q_BTNK, const Tensor& k_BSMK) : shared(k_BSMK.size(2)), each(q_BTNK.size(2) / shared) {}
  Tensor fold(const Tensor& x_BNTX) const {
    return each == 1 ? x_BNTX : x_BNTX.unflatten(1, {shared, each}).flatten(2, 3);
  }
  Tensor unfold(const Tensor& x) const { return each == 1 ? x : x.unflatten(2, {each, -1}).flatten(1, 2); }
};

double scale_of(const OpInputs& in, const Tensor& q) {
  return in.number("scale", 1 / std::sqrt(static_cast<double>(q.size(-1))));
}

Tensor plus(const Tensor& scores, const Tensor& bias) { return bias.defined() ? scores + bias : scores; }

// True, of [B or 1, 1, T or 1, S], where a key is hidden from a query; undefined: nowhere.
Tensor hidden_by(const Tensor& mask_BS) {
  return mask_BS.defined() ? mask_BS.bitwise_not().unsqueeze(1).unsqueeze(1) : Tensor();
}
Tensor hidden_behind(const Tensor& query_place_RT, const Tensor& key_place_RS) {
  return key_place_RS.unsqueeze(1).gt(query_place_RT.unsqueeze(2)).unsqueeze(1);
}
Tensor either(const Tensor& a, const Tensor& b) { return !a.defined() ? b : !b.defined() ? a : a.bitwise_or(b); }
Tensor without(const Tensor& x, const Tensor& hidden, double value) {
  return hidden.defined() ? x.masked_fill(hidden, value) : x;
}

Tensor of_rows(const Tensor& q_BTNK, const Tensor& k_BSMK, const Tensor& v_BSMK, const Tensor& hidden,
               const Tensor& bias, double scale) {
  const Groups groups(q_BTNK, k_BSMK);
  const auto q = groups.fold(q_BTNK.transpose(1, 2) * scale), k = k_BSMK.transpose(1, 2), v = v_BSMK.transpose(1, 2);
  const auto scores = plus(groups.unfold(torch::matmul(q, k.transpose(-2, -1))), bias);
  const auto shares = groups.fold(torch::softmax(without(scores, hidden, kNothing), -1));
  return groups.unfold(torch::matmul(shares, v)).transpose(1, 2);
}

Tensor later_keys(const Tensor& q, const Tensor& k) {
  const auto places = [&](const Tensor& x) {
    return torch::arange(x.size(1), x.options().dtype(torch::kLong).requires_grad(false)).unsqueeze(0);
  };
  return hidden_behind(places(q), places(k));
}

Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask_BS, const OpInputs& in) {
  const auto behind = in.flag("causal") ? later_keys(q, k) : Tensor();
  return of_rows(q, k, v, either(hidden_by(mask_BS), behind), in.tensor(4), scale_of(in, q));
}

// Of a pack every sample by itself.
Tensors attention(const OpInputs& in) {
  const Tensor &q = in.tensor(0), &k = in.tensor(1), &v = in.tensor(2), &mask_BS = in.tensor(3);
  if (!in.has("lengths")) return {attend(q, k, v, mask_BS, in)};
  const auto& lengths = in.list("lengths");
  const auto& key_lengths = in.has("key_lengths") ? in.list("key_lengths") : lengths;
  const auto qs = q.split_with_sizes(lengths, 1), ks = k.split_with_sizes(key_lengths, 1),
             vs = v.split_with_sizes(key_lengths, 1);
  const auto masks = mask_BS.defined() ? mask_BS.split_with_sizes(key_lengths, 1) : Tensors(ks.size());
  Tensors parts;
  for (size_t i = 0; i < qs.size(); ++i) parts.push_back(attend(qs[i], ks[i], vs[i], masks[i], in));
  return {torch::cat(parts, 1)};
}

at::ScalarType accumulation(const Tensor& x) {
  return x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
}

Tensor heads_first(const Tensor& x, at::ScalarType dtype) { return x.to(dtype).transpose(1, 2); }

// A block of keys as attention in pieces sees it: q, k, v, key mask, places of queries and keys, bias.
struct Block {
  Block(const OpInputs& in, size_t first)
      : groups(in.tensor(first), in.tensor(first + 1)), dtype(accumulation(in.tensor(first))) {
    q = heads_first(in.tensor(first), dtype);
    k = heads_first(in.tensor(first + 1), dtype);
    v = heads_first(in.tensor(first + 2), dtype);
    const Tensor &query_place = in.tensor(first + 4), &key_place = in.tensor(first + 5);
    hidden =
        either(hidden_by(in.tensor(first + 3)), key_place.defined() ? hidden_behind(query_place, key_place) : Tensor());
    scale = scale_of(in, q);
    bias = in.tensor(first + 6);
  }
  Tensor scores() const {
    return plus(groups.unfold(torch::matmul(groups.fold(q), k.transpose(-2, -1)) * scale), bias);
  }
  // The keys' shares. Where no key counts, log-sum-exp is -inf, and every share is 0.
  Tensor shares(const Tensor& scores, const Tensor& lse_BNT) const {
    return without((scores - lse_BNT.unsqueeze(-1)).exp(), hidden, 0);
  }

  Groups groups;
  at::ScalarType dtype;
  Tensor q, k, v, hidden, bias;
  double scale;
};

// The output, rounded as that of whole attention is, and log-sum-exp of the scores [B, T, N]: natural, -inf where a
// query sees none of the keys.
Tensors partial(const OpInputs& in) {
  const Block block(in, 0);
  const auto scores = without(block.scores(), block.hidden, kNothing);
  const auto lse_BNT = torch::logsumexp(scores, -1);
  const auto out = block.groups.unfold(torch::matmul(block.groups.fold(block.shares(scores, lse_BNT)), block.v));
  return {out.transpose(1, 2).to(in.tensor(0).scalar_type()).to(block.dtype), lse_BNT.transpose(1, 2)};
}

Tensors merge(const OpInputs& in) {
  const Tensor &out_a = in.tensor(0), &lse_a = in.tensor(1), &out_b = in.tensor(2), &lse_b = in.tensor(3);
  const auto total = torch::logaddexp(lse_a, lse_b);
  const auto share = [&](const Tensor& lse) {  // of nothing so far: 0
    return (lse - total).exp().masked_fill(total == kNothing, 0).unsqueeze(-1);
  };
  return {out_a * share(lse_a) + out_b * share(lse_b), total};
}

// A query that saw no key has what it has where attention is in one piece.
Tensors finish(const OpInputs& in) {
  const Tensor &q = in.tensor(0), &out = in.tensor(1), &lse = in.tensor(2);
  const auto nothing = (lse == kNothing).unsqueeze(-1);
  return {out.masked_fill(nothing, std::numeric_limits<double>::quiet_NaN()).to(q.scalar_type()), lse};
}

// This block's share in the gradients of q, k and v.
Tensors backward(const OpInputs& in) {
  const Block block(in, 1);
  const auto& groups = block.groups;
  const auto dtype = in.tensor(1).scalar_type();
  const auto grad = heads_first(in.tensor(0), block.dtype), out = heads_first(in.tensor(8), block.dtype);
  const auto lse_BNT = in.tensor(9).transpose(1, 2);
  const auto p = block.shares(block.scores(), lse_BNT);
  const auto dp = groups.unfold(torch::matmul(groups.fold(grad), block.v.transpose(-2, -1)));
  const auto delta = (grad * out).sum(-1, true);
  const auto ds = groups.fold(p * (dp - delta) * block.scale);
  const auto back = [&](const Tensor& x) { return x.transpose(1, 2).to(dtype); };
  return {back(groups.unfold(torch::matmul(ds, block.k))),
          back(torch::matmul(ds.transpose(-2, -1), groups.fold(block.q))),
          back(torch::matmul(groups.fold(p).transpose(-2, -1), groups.fold(grad)))};
}

// Attention in two blocks of keys, and its gradients: what a family of partial ops is for.
Tensors in_pieces(const OpInputs& in, const Op::RunOp& run) {
  const torch::NoGradGuard no_grad;
  const Tensor &q = in.tensor(0), &k = in.tensor(1), &grad = in.tensor(7);
  const int64_t middle = k.size(1) / 3;
  const auto block = [&](int64_t start, int64_t length) -> OpInputs {
    const auto keys = [&](size_t i, int64_t dim = 1) {
      return in.tensor(i).defined() ? in.tensor(i).narrow(dim, start, length) : Tensor();
    };
    return {{q, keys(1), keys(2), keys(3), in.tensor(4), keys(5), keys(6, 3)}, in.attributes};
  };
  const auto first = block(0, middle), second = block(middle, k.size(1) - middle);
  auto sum = run("attention_partial", block(0, 0));
  for (const auto& one : {first, second}) {
    auto both = sum;
    for (const auto& tensor : run("attention_partial", one)) both.push_back(tensor);
    sum = run("attention_merge", {both});
  }
  sum.insert(sum.begin(), q);
  auto finished = run("attention_finish", {sum});
  Tensors results{finished.at(0)};
  const auto shares = [&](OpInputs one) {
    one.tensors.insert(one.tensors.begin(), grad);
    one.tensors.insert(one.tensors.end(), finished.begin(), finished.end());
    return run("attention_backward", one);
  };
  const auto a = shares(first), b = shares(second);
  results.push_back(a[0] + b[0]);
  for (const size_t i : {1, 2}) results.push_back(torch::cat({a[i], b[i]}, 1));
  return results;
}

}  // namespace

std::vector<Op> attention_ops(const MakeNumbers& leaf, const std::function<double(at::ScalarType)>& tolerance) {
  struct Sizes {
    int64_t B, T, S, N, M, K;
  };
  const auto mask_of = [](int64_t B, int64_t S) {
    return torch::arange(S).unsqueeze(0).lt(torch::arange(B).add(S / 2).unsqueeze(1));
  };
  const auto mask_of_pack = [](int64_t S) { return torch::arange(S).remainder(5).ne(2).unsqueeze(0); };
  const auto whole = [=](const char* name, Sizes s, bool masked, std::map<std::string, Attribute> attributes = {},
                         bool biased = false) {
    return Op::Case{name, [=](at::ScalarType dtype) -> OpInputs {
                      OpInputs in{{leaf({s.B, s.T, s.N, s.K}, 1, dtype), leaf({s.B, s.S, s.M, s.K}, 2, dtype),
                                   leaf({s.B, s.S, s.M, s.K}, 3, dtype),
                                   !masked                            ? Tensor()
                                   : attributes.count("lengths") != 0 ? mask_of_pack(s.S)
                                                                      : mask_of(s.B, s.S)},
                                  attributes};
                      if (biased) in.tensors.push_back(leaf({1, s.N, s.T, s.S}, 4, dtype));
                      return in;
                    }};
  };
  const auto pieces = [=](const char* name, Sizes s, bool masked, bool causal) {
    return Op::Case{
        name, [=](at::ScalarType dtype) -> OpInputs {
          const auto numbers = [&](std::vector<int64_t> shape, int64_t which) {
            return leaf(std::move(shape), which, dtype).detach();
          };
          const auto places = [&](int64_t count) { return torch::arange(count).unsqueeze(0); };
          return {{numbers({s.B, s.T, s.N, s.K}, 1), numbers({s.B, s.S, s.M, s.K}, 2), numbers({s.B, s.S, s.M, s.K}, 3),
                   masked ? mask_of(s.B, s.S) : Tensor(), causal ? places(s.T) : Tensor(),
                   causal ? places(s.S) : Tensor(), Tensor(), numbers({s.B, s.T, s.N, s.K}, 5)}};
        }};
  };
  const std::vector<int64_t> pack{3, 1, 5}, keys{4, 4, 2};
  std::vector<Op> list{
      {"attention",
       "q [B,T,N,K], k [B,S,M,K], v [B,S,M,K], key mask [B,S] or none, bias [1 or B,1 or N,T,S] or none; scale, "
       "causal, lengths and key_lengths of a pack's samples, token_leaf -> [B,T,N,K]",
       {},
       attention,
       {whole("self", {2, 9, 9, 3, 3, 8}, false), whole("cross, masked", {2, 5, 12, 2, 2, 16}, true),
        whole("grouped", {2, 7, 7, 6, 2, 8}, true), whole("scaled", {1, 5, 5, 2, 2, 8}, false, {{"scale", 0.5}}),
        whole("causal", {2, 7, 7, 4, 2, 8}, false, {{"causal", true}}),
        whole("biased", {2, 5, 5, 3, 3, 8}, false, {}, true),
        whole("packed", {1, 9, 9, 4, 2, 8}, true, {{"lengths", pack}}),
        whole("cross in a pack", {1, 9, 10, 2, 2, 8}, false, {{"lengths", pack}, {"key_lengths", keys}})},
       tolerance}};
  list.back().optional = {"scale", "causal", "lengths", "key_lengths", "token_leaf"};
  const auto add = [&](const char* name, const char* signature, Tensors (*reference)(const OpInputs&),
                       int64_t outputs) {
    Op op{name, signature, {}, reference, {}, tolerance};
    op.outputs = outputs;
    op.leader = "attention_partial";
    list.push_back(std::move(op));
  };
  add("attention_partial",
      "q [B,T,N,K], k [B,S,M,K], v [B,S,M,K], key mask [B,S] or none, places of queries [1 or B,T] and of keys [1 or "
      "B,S] or none (a query sees no later key), bias or none; scale -> partial results [B,T,N,...], of no key for S = "
      "0",
      partial, 2);
  list.back().optional = {"scale"};
  list.back().cases = {pieces("self", {2, 9, 9, 3, 3, 8}, false, false),
                       pieces("masked", {2, 5, 12, 2, 2, 16}, true, false),
                       pieces("grouped, causal", {2, 7, 7, 6, 2, 8}, false, true)};
  list.back().use = in_pieces;
  add("attention_merge", "partial results of some keys, and of others -> partial results of both", merge, 2);
  add("attention_finish", "q, partial results of all keys -> [B,T,N,K], statistics [B,T,N,...]", finish, 2);
  add("attention_backward",
      "gradient of the output, what attention_partial was given of some keys, output and statistics of all -> their "
      "share in the gradients of q, and the gradients of k and v",
      backward, 3);
  list.back().optional = {"scale"};
  return list;
}

}  // namespace ditto
