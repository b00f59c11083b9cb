// The ring: partial results merged block by block, and gradients that travel with their block.
//
// Legend: B samples, T tokens here, S tokens of the block at hand, N heads, K head width, G rows of tokens that see
// each other.
#include <ditto/parallel/ring_attention.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include <torch/autograd.h>
#include <torch/types.h>

#include <ditto/error.h>
#include <ditto/kernels.h>
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

// A token in the whole: of which part, and its place there.
struct Token {
  size_t part;
  int64_t place;
};

// Tokens see each other if this is equal for them.
std::function<int64_t(const Token&)> neighbourhood(const AttentionCall& call) {
  const auto& tokens = call.parts[0].tokens;
  if (call.pattern != Pattern::full) {
    const auto grids = tokens.packing ? tokens.packing->grids : std::vector<Grid>{tokens.grid};
    return [grids, spatial = call.pattern == Pattern::spatial](const Token& token) {
      int64_t place = token.place, before = 0;
      size_t sample = 0;
      const auto places = [&] { return grids[sample].rows * grids[sample].columns; };
      for (; place >= grids[sample].tokens(); ++sample) {
        place -= grids[sample].tokens();
        before += spatial ? grids[sample].frames : places();
      }
      return before + (spatial ? place / places() : place % places());
    };
  }
  std::vector<std::vector<int64_t>> ends;
  for (const auto& part : call.parts) {
    const auto& lengths = part.tokens.packing->lengths;
    std::partial_sum(lengths.begin(), lengths.end(), ends.emplace_back(lengths.size()).begin());
  }
  return [ends](const Token& token) {
    const auto& of = ends[token.part];
    return std::upper_bound(of.begin(), of.end(), token.place) - of.begin();
  };
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

// What all passes of one call share. A member's block are its tokens of all parts, part by part.
struct Ring : torch::CustomClassHolder {
  AttentionCall call;                         // without tensors, but for the bias
  std::vector<std::vector<int64_t>> lengths;  // of each part: each member's tokens
  const Group* group;
  const OpTable* table;
  std::string variant;  // of the partial ops
  Tensors masks_BS;     // of each part, of all members' keys; undefined: all count

  int size() const { return group->size(); }
  // The member whose block is here after so many passes.
  int owner(int passes) const { return (group->rank() - passes + size()) % size(); }
  int64_t length(size_t part, int member) const { return lengths[part][static_cast<size_t>(member)]; }
  int64_t start(size_t part, int member) const {
    return std::accumulate(lengths[part].begin(), lengths[part].begin() + member, int64_t{0});
  }
  int64_t length(int member) const {
    int64_t sum = 0;
    for (size_t part = 0; part < lengths.size(); ++part) sum += length(part, member);
    return sum;
  }
  std::vector<Token> tokens_of(int member) const {
    std::vector<Token> list;
    for (size_t part = 0; part < lengths.size(); ++part)
      for (int64_t i = 0; i < length(part, member); ++i) list.push_back({part, start(part, member) + i});
    return list;
  }
  // Each token's place in the order of parts: what is causal goes by it, and a bias.
  Tensor order_of(int member, const torch::Device& device) const {
    std::vector<int64_t> before(lengths.size(), 0), order;
    for (size_t part = 1; part < lengths.size(); ++part) before[part] = before[part - 1] + start(part - 1, size());
    for (const auto& token : tokens_of(member)) order.push_back(before[token.part] + token.place);
    return torch::tensor(order, torch::kLong).to(device);
  }

  // Rows of equal lengths are computed together.
  std::vector<Pairs> pairs(int member, const torch::Device& device) const {
    if (call.pattern == Pattern::full && !call.parts[0].tokens.packing) return {{}};
    const auto hood = neighbourhood(call);
    using Row = std::pair<std::vector<int64_t>, std::vector<int64_t>>;
    std::map<int64_t, Row> rows;
    const auto queries_here = tokens_of(group->rank()), keys_there = tokens_of(member);
    for (size_t i = 0; i < queries_here.size(); ++i)
      rows[hood(queries_here[i])].first.push_back(static_cast<int64_t>(i));
    for (size_t i = 0; i < keys_there.size(); ++i)
      if (const auto it = rows.find(hood(keys_there[i])); it != rows.end())
        it->second.second.push_back(static_cast<int64_t>(i));
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

  // The mask of a member's keys, [B, S]; undefined: all count.
  Tensor mask_of(int member, const Tensor& k_BSMK) const {
    if (std::none_of(masks_BS.begin(), masks_BS.end(), [](const Tensor& mask) { return mask.defined(); })) return {};
    Tensors parts;
    for (size_t part = 0; part < masks_BS.size(); ++part)
      parts.push_back(masks_BS[part].defined()
                          ? masks_BS[part].narrow(1, start(part, member), length(part, member))
                          : torch::ones({k_BSMK.size(0), length(part, member)}, k_BSMK.options().dtype(torch::kBool)));
    return parts.size() == 1 ? parts[0] : torch::cat(parts, 1);
  }

  // Of the queries of `pairs` and their keys in a member's block, [2, B, S, M, K]: what the partial op takes.
  OpInputs inputs(const Tensor& q, const Tensor& block, int member, const Pairs& pairs) const {
    OpInputs in{{rows_of(q, pairs.query_GT), rows_of(block[0], pairs.key_GS), rows_of(block[1], pairs.key_GS)}};
    const auto mask_BS = mask_of(member, block[0]);
    in.tensors.push_back(mask_BS.defined() ? rows_of(mask_BS, pairs.key_GS) : mask_BS);
    if (call.causal) {
      const auto order = [&](int of, const Tensor& index_GT) {
        const auto order_BT = order_of(of, q.device()).unsqueeze(0).expand({q.size(0), -1});
        return rows_of(order_BT, index_GT);
      };
      in.tensors.push_back(order(group->rank(), pairs.query_GT));
      in.tensors.push_back(order(member, pairs.key_GS));
    } else {
      in.tensors.resize(in.tensors.size() + 2);
    }
    in.tensors.push_back(bias_of(member));
    if (call.scale) in.attributes["scale"] = *call.scale;
    return in;
  }
  Tensor bias_of(int member) const {
    const auto& bias = call.bias;
    if (!bias.defined()) return bias;
    return bias.index_select(2, order_of(group->rank(), bias.device()))
        .index_select(3, order_of(member, bias.device()));
  }
  Tensors run(const char* op, const OpInputs& in) const { return table->run_as(variant, op, in); }

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

Tensors together(Tensors a, const Tensors& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// What the queries here have seen so far: opaque tensors [B, T, …], which are merged row by row.
struct Partial {
  const Ring& ring;
  Tensors sum;

  void merge(const Tensors& more, const Tensor& index_GT) {
    Tensors before, others;
    for (const auto& tensor : sum)
      before.push_back(index_GT.defined() ? tensor.index_select(1, index_GT.flatten()) : tensor);
    for (const auto& tensor : more) others.push_back(tokens_of(tensor, index_GT));
    auto merged = ring.run("attention_merge", {together(before, others)});
    if (!index_GT.defined()) return void(sum = std::move(merged));
    for (size_t i = 0; i < sum.size(); ++i) sum[i].index_copy_(1, index_GT.flatten(), merged[i]);
  }
};

struct RingFunction : torch::autograd::Function<RingFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                        const c10::intrusive_ptr<Ring>& ring) {
    auto block = torch::stack({k, v});
    auto start = ring->inputs(q, block, ring->group->rank(), {});
    ring->variant = ring->table->variant("attention_partial", start);
    Partial partial{*ring, ring->run("attention_partial", of_no_key(start))};
    for (int pass = 0; pass < ring->size(); ++pass) {
      const auto next = pass + 1 < ring->size() ? ring->shift(block, pass) : nullptr;
      const int member = ring->owner(pass);
      for (const auto& pairs : ring->pairs(member, q.device()))
        partial.merge(ring->run("attention_partial", ring->inputs(q, block, member, pairs)), pairs.query_GT);
      if (next) block = next();
    }
    const auto finished = ring->run("attention_finish", {together({q}, partial.sum)});
    ctx->saved_data["ring"] = c10::IValue::make_capsule(ring);
    ctx->save_for_backward(together({q, k, v}, finished));
    return finished[0];
  }

  // Where every query begins.
  static OpInputs of_no_key(OpInputs in) {
    for (const size_t i : {1, 2, 3, 5})
      if (in.tensors[i].defined()) in.tensors[i] = in.tensors[i].narrow(1, 0, 0);
    if (in.tensors[6].defined()) in.tensors[6] = in.tensors[6].narrow(3, 0, 0);
    return in;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grad) {
    const auto ring = c10::static_intrusive_pointer_cast<Ring>(ctx->saved_data["ring"].toCapsule());
    const auto saved = ctx->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2];
    const Tensors finished(saved.begin() + 3, saved.end());
    const auto dq = torch::zeros(q.sizes(), q.options().dtype(accumulation(q)));
    auto block = torch::stack({k, v});
    std::function<Tensor()> arriving;  // the block's gradient, from the members that have had it
    for (int pass = 0; pass < ring->size(); ++pass) {
      const auto next = pass + 1 < ring->size() ? ring->shift(block, pass) : nullptr;
      const auto dkv = torch::zeros(block.sizes(), dq.options());
      for (const auto& pairs : ring->pairs(ring->owner(pass), q.device())) {
        const auto& here = pairs.query_GT;
        auto in = ring->inputs(q, block, ring->owner(pass), pairs);
        in.tensors.insert(in.tensors.begin(), rows_of(grad[0], here));
        for (const auto& tensor : finished) in.tensors.push_back(rows_of(tensor, here));
        const auto shares = ring->run("attention_backward", in);
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

void check(const AttentionCall& call, const std::vector<std::vector<int64_t>>& lengths, int rank) {
  check_call(call);
  if (call.pattern == Pattern::cross)
    throw Error(ErrorKind::shape, "ring attention", "is of a sample's own tokens, never of them to text");
  if (call.bias.defined() && call.bias.requires_grad())
    throw Error(ErrorKind::config, "ring attention",
                "was given a bias that is learned, whose gradient it does not pass on",
                "use context_plugin = \"ulysses\", or a bias without a gradient");
  for (size_t part = 0; part < call.parts.size(); ++part)
    if (const int64_t found = call.parts[part].q.size(1), left = lengths[part][static_cast<size_t>(rank)];
        found != left)
      throw Error(ErrorKind::shape, "ring attention",
                  "of " + std::to_string(found) + " tokens, where the cut leaves " + std::to_string(left),
                  "attention must see the tokens of the stream, all of them and no others");
}

// The parts side by side: of one rank, in the order of parts.
Tensor joined(const AttentionCall& call, Tensor AttentionPart::*which) {
  if (call.parts.size() == 1) return call.parts[0].*which;
  Tensors all;
  for (const auto& part : call.parts) all.push_back(part.*which);
  return torch::cat(all, 1);
}

}  // namespace

Tensors ring_attention(const AttentionCall& call, const std::vector<std::vector<int64_t>>& lengths, const Group& group,
                       const AttentionOp& op) {
  check(call, lengths, group.rank());
  if (!group.transport()) return op.run(call);
  auto ring = c10::make_intrusive<Ring>();
  ring->call = call;
  std::vector<int64_t> here;
  for (size_t i = 0; i < call.parts.size(); ++i) {
    auto& part = ring->call.parts[i];
    ring->masks_BS.push_back(whole_mask(part.key_mask_BS, lengths[i], group));
    here.push_back(part.q.size(1));
    part.q = part.k = part.v = part.key_mask_BS = Tensor();
  }
  ring->lengths = lengths;
  ring->group = &group;
  ring->table = op.table;
  const auto out = RingFunction::apply(joined(call, &AttentionPart::q), joined(call, &AttentionPart::k),
                                       joined(call, &AttentionPart::v), ring);
  if (here.size() == 1) return {out};
  return out.split_with_sizes(here, 1);
}

}  // namespace ditto
