// The ring: partial attention merged by log-sum-exp, and gradients that travel with their block.
//
// Legend: B samples, T tokens here, S tokens of the block at hand, N heads, K head width, G rows of tokens that see
// each other.
#include <ditto/parallel/ring_attention.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include <torch/torch.h>

#include <ditto/error.h>
#include <ditto/parallel/token_cut.h>

namespace ditto {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

// Tokens here (row by row) and tokens of a block that see each other, as places in either; undefined: all of them.
struct Pairs {
  Tensor query_GT, key_GS;
};

// Tokens see each other if this is equal for them. Tokens are numbered in the whole.
std::function<int64_t(int64_t)> neighbourhood(const AttentionShape& shape) {
  const int64_t places = shape.grid.rows * shape.grid.columns;
  if (shape.pattern == Pattern::spatial) return [places](int64_t token) { return token / places; };
  if (shape.pattern == Pattern::temporal) return [places](int64_t token) { return token % places; };
  std::vector<int64_t> ends(shape.packing->lengths.size());
  std::partial_sum(shape.packing->lengths.begin(), shape.packing->lengths.end(), ends.begin());
  return [ends](int64_t token) { return std::upper_bound(ends.begin(), ends.end(), token) - ends.begin(); };
}

Tensor places(const std::vector<int64_t>& flat, int64_t width, const torch::Device& device) {
  return torch::tensor(flat, torch::kLong).view({-1, width}).to(device);
}

// [B, T, …] -> [B * G, T of a row, …], and back to the tokens in the order of rows.
Tensor rows_of(const Tensor& x, const Tensor& index_GT) {
  if (!index_GT.defined()) return x;
  return x.index_select(1, index_GT.flatten()).unflatten(1, index_GT.sizes()).flatten(0, 1);
}
Tensor tokens_of(const Tensor& rows, const Tensor& index_GT) {
  return index_GT.defined() ? rows.unflatten(0, {-1, index_GT.size(0)}).flatten(1, 2) : rows;
}

// What all passes of one call share.
struct Ring : torch::CustomClassHolder {
  AttentionShape shape;
  std::vector<int64_t> starts;  // one more than members
  const Group* group;
  std::shared_ptr<const AttentionOp> op;
  Tensor mask_BS;  // of all members' keys; undefined: all count

  int size() const { return group->size(); }
  // The member whose block is here after so many passes.
  int owner(int passes) const { return (group->rank() - passes + size()) % size(); }
  int64_t start(int member) const { return starts[static_cast<size_t>(member)]; }
  int64_t length(int member) const { return start(member + 1) - start(member); }

  // Rows of equal lengths are computed together.
  std::vector<Pairs> pairs(int member, const torch::Device& device) const {
    if (shape.pattern == Pattern::full && !shape.packing) return {{}};
    const auto hood = neighbourhood(shape);
    using Row = std::pair<std::vector<int64_t>, std::vector<int64_t>>;
    std::map<int64_t, Row> rows;
    for (int64_t i = 0; i < length(group->rank()); ++i) rows[hood(start(group->rank()) + i)].first.push_back(i);
    for (int64_t i = 0; i < length(member); ++i)
      if (const auto it = rows.find(hood(start(member) + i)); it != rows.end()) it->second.second.push_back(i);
    std::map<std::pair<size_t, size_t>, Row> groups;
    for (const auto& [which, row] : rows) {
      if (row.second.empty()) continue;
      auto& [queries, keys] = groups[{row.first.size(), row.second.size()}];
      queries.insert(queries.end(), row.first.begin(), row.first.end());
      keys.insert(keys.end(), row.second.begin(), row.second.end());
    }
    std::vector<Pairs> list;
    for (const auto& [size, row] : groups)
      list.push_back({places(row.first, static_cast<int64_t>(size.first), device),
                      places(row.second, static_cast<int64_t>(size.second), device)});
    return list;
  }

  // The mask of the keys of `pairs` in a member's block, as rows_of gives these.
  Tensor mask_of(int member, const Pairs& pairs) const {
    return mask_BS.defined() ? rows_of(mask_BS.narrow(1, start(member), length(member)), pairs.key_GS) : mask_BS;
  }

  // Hands on what belongs to the block at hand, [2, B, S, N, K], and gives what belongs to the next one.
  std::function<Tensor()> shift(const Tensor& block, int passes) const {
    auto shape_of_next = block.sizes().vec();
    shape_of_next[2] = length(owner(passes + 1));
    std::vector<int64_t> send(static_cast<size_t>(size())), receive = send;
    send[static_cast<size_t>((group->rank() + 1) % size())] = block.numel();
    receive[static_cast<size_t>(owner(1))] = c10::multiply_integers(shape_of_next);
    auto arrival = group->begin_exchange(block.view(-1), send, receive, "shift");
    return [arrival, shape_of_next] { return arrival().view(shape_of_next); };
  }
};

at::ScalarType accumulation(const Tensor& x) {
  return x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
}

void add_rows(const Tensor& sum, const Tensor& rows, const Tensor& index_GT) {
  if (index_GT.defined())
    sum.index_add_(1, index_GT.flatten(), tokens_of(rows, index_GT).to(sum.scalar_type()));
  else
    sum.add_(rows);
}

constexpr double kNothing = -std::numeric_limits<double>::infinity();

// What a query has seen so far; log-sum-exp is -inf where that is nothing.
struct Partial {
  Tensor out_BTNK, lse_BTN;
  bool is_masked;

  void merge(const Tensor& out, const Tensor& lse_BTN1, const Tensor& index_GT) {
    const auto before = index_GT.defined() ? lse_BTN.index_select(1, index_GT.flatten()) : lse_BTN;
    const auto out_before = index_GT.defined() ? out_BTNK.index_select(1, index_GT.flatten()) : out_BTNK;
    const auto total = torch::logaddexp(before, lse_BTN1);
    const auto share = [&](const Tensor& lse) {
      const auto part = (lse - total).exp();  // of nothing so far, under a mask: 0
      return (is_masked ? part.masked_fill(total == kNothing, 0) : part).unsqueeze(-1);
    };
    const auto merged = out_before * share(before) + tokens_of(out, index_GT) * share(lse_BTN1);
    if (index_GT.defined()) {
      lse_BTN.index_copy_(1, index_GT.flatten(), total);
      out_BTNK.index_copy_(1, index_GT.flatten(), merged);
    } else {
      lse_BTN = total;
      out_BTNK = merged;
    }
  }
};

struct RingFunction : torch::autograd::Function<RingFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                        const c10::intrusive_ptr<Ring>& ring) {
    const auto options = q.options().dtype(accumulation(q));
    Partial partial{torch::zeros(q.sizes(), options), torch::full({q.size(0), q.size(1), q.size(2)}, kNothing, options),
                    ring->mask_BS.defined()};
    auto block = torch::stack({k, v});
    for (int pass = 0; pass < ring->size(); ++pass) {
      const auto next = pass + 1 < ring->size() ? ring->shift(block, pass) : nullptr;
      for (const auto& pairs : ring->pairs(ring->owner(pass), q.device())) {
        const auto [out, lse_BNT] =
            ring->op->forward(rows_of(q, pairs.query_GT), rows_of(block[0], pairs.key_GS),
                              rows_of(block[1], pairs.key_GS), ring->mask_of(ring->owner(pass), pairs));
        partial.merge(out, tokens_of(lse_BNT.transpose(1, 2), pairs.query_GT), pairs.query_GT);
      }
      if (next) block = next();
    }
    // As attention on one rank has it where no key counts.
    if (partial.is_masked)
      partial.out_BTNK.masked_fill_((partial.lse_BTN == kNothing).unsqueeze(-1),
                                    std::numeric_limits<double>::quiet_NaN());
    const auto out = partial.out_BTNK.to(q.scalar_type());
    ctx->saved_data["ring"] = c10::IValue::make_capsule(ring);
    ctx->save_for_backward({q, k, v, out, partial.lse_BTN});
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grad) {
    const auto ring = c10::static_intrusive_pointer_cast<Ring>(ctx->saved_data["ring"].toCapsule());
    const auto saved = ctx->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], &lse_BTN = saved[4];
    const auto wide = accumulation(q);
    const auto dq = torch::zeros(q.sizes(), q.options().dtype(wide));
    auto block = torch::stack({k, v});
    std::function<Tensor()> arriving;  // the block's gradient, from the members that have had it
    for (int pass = 0; pass < ring->size(); ++pass) {
      const auto next = pass + 1 < ring->size() ? ring->shift(block, pass) : nullptr;
      const auto dkv = torch::zeros(block.sizes(), dq.options());
      for (const auto& pairs : ring->pairs(ring->owner(pass), q.device())) {
        const auto& here = pairs.query_GT;
        const auto shares = ring->op->backward(
            rows_of(grad[0], here), rows_of(q, here), rows_of(block[0], pairs.key_GS), rows_of(block[1], pairs.key_GS),
            ring->mask_of(ring->owner(pass), pairs), rows_of(out, here), rows_of(lse_BTN, here).transpose(1, 2));
        add_rows(dq, shares[0], here);
        add_rows(dkv[0], shares[1], pairs.key_GS);
        add_rows(dkv[1], shares[2], pairs.key_GS);
      }
      if (arriving) dkv.add_(arriving());
      arriving = ring->shift(dkv, pass);
      if (next) block = next();
    }
    const auto own = arriving();
    return {dq.to(q.scalar_type()), own[0].to(k.scalar_type()), own[1].to(v.scalar_type()), Tensor()};
  }
};

void check(const Tensor& q, const AttentionShape& shape, int64_t expected) {
  if (shape.pattern == Pattern::cross || (shape.packing && shape.pattern != Pattern::full))
    throw Error(ErrorKind::shape, "ring attention",
                "is defined for full attention, and for spatial and temporal attention without packs; never to text");
  if (q.size(1) != expected)
    throw Error(ErrorKind::shape, "ring attention",
                "of " + std::to_string(q.size(1)) + " tokens, where the cut leaves " + std::to_string(expected),
                "attention must see the tokens of the stream, all of them and no others");
  const auto& mask_BS = shape.key_mask_BS;
  if (mask_BS.defined() && (mask_BS.dim() != 2 || mask_BS.size(0) != q.size(0) || mask_BS.size(1) != expected))
    throw Error(ErrorKind::shape, "ring attention",
                "was given a key mask of " + c10::str(mask_BS.sizes()) + ", where the cut leaves " +
                    std::to_string(expected) + " tokens of " + std::to_string(q.size(0)) + " rows",
                "keep the mask in the stream, as a field with tokens");
}

}  // namespace

Tensor ring_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionShape& shape,
                      const std::vector<int64_t>& lengths, const Group& group, std::shared_ptr<const AttentionOp> op) {
  check(q, shape, lengths[static_cast<size_t>(group.rank())]);
  if (!group.transport()) return op->run(q, k, v, shape);
  auto ring = c10::make_intrusive<Ring>();
  ring->shape = shape;
  ring->starts.assign(1, 0);
  for (const int64_t length : lengths) ring->starts.push_back(ring->starts.back() + length);
  ring->group = &group;
  ring->op = std::move(op);
  if (shape.key_mask_BS.defined()) ring->mask_BS = whole_mask(shape.key_mask_BS, lengths, group);
  return RingFunction::apply(q, k, v, ring);
}

}  // namespace ditto
