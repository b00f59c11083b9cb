// Patterns, joint sequences and packs, reduced to the op "attention".
#include <ditto/nn/attention.h>

#include <algorithm>

#include <torch/types.h>

#include <ditto/error.h>
#include <ditto/kernels.h>

#include "nn/tokens_here.h"

namespace ditto {

using torch::Tensor;

namespace {

[[noreturn]] void refuse(const std::string& found, const std::string& remedy) {
  throw Error(ErrorKind::shape, "attention", found, remedy);
}

void check_mask(const AttentionPart& part) {
  const Tensor& mask_BS = part.key_mask_BS;
  if (!mask_BS.defined()) return;
  const std::vector<int64_t> expected{part.k.size(0), part.k.size(1)};
  if (mask_BS.scalar_type() != torch::kBool || mask_BS.sizes() != at::IntArrayRef(expected))
    refuse("was given a key mask that is " + std::string(c10::toString(mask_BS.scalar_type())) + " " +
               c10::str(mask_BS.sizes()) + ", for keys of " + c10::str(at::IntArrayRef(expected)),
           "give a bool for each key that is given; a mask that comes with a stream is a field of role constant");
}

void check_part(const AttentionPart& part, const AttentionPart& first, Pattern pattern) {
  const Tensor &q = part.q, &k = part.k, &v = part.v;
  if (q.dim() != 4 || k.dim() != 4 || k.sizes() != v.sizes() || q.size(3) != k.size(3))
    refuse("was given q " + c10::str(q.sizes()) + ", k " + c10::str(k.sizes()) + " and v " + c10::str(v.sizes()),
           "give [B, T, N, K] for q, and [B, S, M, K] for both k and v");
  if (k.size(2) == 0 || q.size(2) % k.size(2) != 0)
    refuse("was given " + std::to_string(q.size(2)) + " heads of queries for " + std::to_string(k.size(2)) +
               " of keys, which do not divide them",
           "give every head of keys the same number of queries'");
  if (pattern != Pattern::cross && (q.size(0) != k.size(0) || q.size(1) != k.size(1)))
    refuse("was given q " + c10::str(q.sizes()) + " and k " + c10::str(k.sizes()),
           "tokens of one sequence have a key each; for keys of another use Pattern::cross, or a part of its own");
  if (q.size(0) != first.q.size(0) || q.size(2) != first.q.size(2) || k.size(2) != first.k.size(2) ||
      q.size(3) != first.q.size(3))
    refuse("was given sequences of q " + c10::str(first.q.sizes()) + " and " + c10::str(q.sizes()),
           "sequences that attend together have the same rows and heads");
  check_mask(part);
}

void check_packs(const AttentionCall& call) {
  const auto& packing = call.parts[0].tokens.packing;
  for (const auto& part : call.parts)
    if ((part.tokens.packing != nullptr) != (packing != nullptr) ||
        (packing && part.tokens.packing->lengths.size() != packing->lengths.size()))
      refuse("was given sequences of which one is a pack of other samples than the first",
             "pack the same samples in all sequences that attend together");
  if (!packing || (call.pattern != Pattern::spatial && call.pattern != Pattern::temporal)) return;
  if (packing->grids.size() != packing->lengths.size())
    refuse("in space or in time was given a pack that does not say its samples' grids", "set Packing::grids");
}

void check_key_lengths(const AttentionCall& call) {
  for (const auto& part : call.parts) {
    if (part.key_lengths.empty()) continue;
    const auto& packing = part.tokens.packing;
    if (call.pattern != Pattern::cross || !packing)
      refuse("was given key_lengths outside of cross-attention of a pack", "leave them empty, and give a key mask");
    const auto fits = [&](int64_t length) { return length >= 1 && length <= part.k.size(1); };
    if (part.key_lengths.size() != packing->lengths.size() ||
        !std::all_of(part.key_lengths.begin(), part.key_lengths.end(), fits))
      refuse("was given key_lengths " + c10::str(at::IntArrayRef(part.key_lengths)) + " for " +
                 std::to_string(packing->lengths.size()) + " samples and rows of " + std::to_string(part.k.size(1)) +
                 " keys",
             "give one for each sample of the pack, of at least 1 and at most the row's keys");
  }
}

// The lengths of one sequence's samples, of whole rows that are here.
std::vector<int64_t> lengths_of(const AttentionPart& part) {
  if (part.q.size(1) != part.tokens.tokens())
    refuse(
        "was given " + std::to_string(part.q.size(1)) + " tokens of a pack of " + std::to_string(part.tokens.tokens()),
        "a slice of a pack needs a context strategy");
  return part.tokens.packing->lengths;
}

// Several sequences as one: side by side, sample by sample where they are packed.
class Joined {
 public:
  explicit Joined(const AttentionCall& call) : parts_(call.parts) {
    const bool packed = parts_[0].tokens.packing != nullptr;
    for (const auto& part : parts_) pieces_.push_back(packed ? lengths_of(part) : std::vector<int64_t>{part.q.size(1)});
    if (packed) lengths = std::vector<int64_t>(pieces_[0].size(), 0);
    for (const auto& pieces : pieces_)
      for (size_t i = 0; i < lengths.size(); ++i) lengths[i] += pieces[i];
  }

  Tensor join(Tensor AttentionPart::*which) const {
    if (parts_.size() == 1) return parts_[0].*which;
    std::vector<Tensors> of_parts;
    for (size_t p = 0; p < parts_.size(); ++p) of_parts.push_back((parts_[p].*which).split_with_sizes(pieces_[p], 1));
    return interleaved(of_parts);
  }
  Tensor join_masks() const {
    const auto has_none = [](const auto& part) { return !part.key_mask_BS.defined(); };
    if (parts_.size() == 1 || std::all_of(parts_.begin(), parts_.end(), has_none)) return parts_[0].key_mask_BS;
    std::vector<Tensors> of_parts;
    for (size_t p = 0; p < parts_.size(); ++p) {
      const Tensor& k = parts_[p].k;
      const auto mask_BS = has_none(parts_[p]) ? torch::ones({k.size(0), k.size(1)}, k.options().dtype(torch::kBool))
                                               : parts_[p].key_mask_BS;
      of_parts.push_back(mask_BS.split_with_sizes(pieces_[p], 1));
    }
    return interleaved(of_parts);
  }
  Tensors split(const Tensor& out) const {
    if (parts_.size() == 1) return {out};
    std::vector<int64_t> sizes;
    for (size_t i = 0; i < pieces_[0].size(); ++i)
      for (const auto& pieces : pieces_) sizes.push_back(pieces[i]);
    const auto all = out.split_with_sizes(sizes, 1);
    Tensors list;
    for (size_t p = 0; p < parts_.size(); ++p) {
      Tensors own;
      for (size_t i = p; i < all.size(); i += parts_.size()) own.push_back(all[i]);
      list.push_back(own.size() == 1 ? own[0] : torch::cat(own, 1));
    }
    return list;
  }

  std::vector<int64_t> lengths;  // of a pack's joint samples

 private:
  static Tensor interleaved(const std::vector<Tensors>& of_parts) {
    Tensors all;
    for (size_t i = 0; i < of_parts[0].size(); ++i)
      for (const auto& pieces : of_parts) all.push_back(pieces[i]);
    return torch::cat(all, 1);
  }

  const std::vector<AttentionPart>& parts_;
  std::vector<std::vector<int64_t>> pieces_;  // of each part: tokens of each sample, or all of them
};

std::map<std::string, Attribute> attributes_of(const AttentionCall& call) {
  std::map<std::string, Attribute> attributes;
  if (call.scale) attributes["scale"] = *call.scale;
  if (call.causal) attributes["causal"] = true;
  if (call.token_leaf > 0) attributes["token_leaf"] = call.token_leaf;
  return attributes;
}

Tensors full(const OpTable& table, const AttentionCall& call) {
  const Joined joined(call);
  OpInputs in{{joined.join(&AttentionPart::q), joined.join(&AttentionPart::k), joined.join(&AttentionPart::v),
               joined.join_masks()},
              attributes_of(call)};
  if (call.bias.defined()) in.tensors.push_back(call.bias);
  if (!joined.lengths.empty()) in.attributes["lengths"] = joined.lengths;
  return joined.split(table.run("attention", in).at(0));
}

// The tokens of a pack that are here, each over the keys of its sample's row that are its own.
OpInputs cross_of_pack(const AttentionPart& part, std::map<std::string, Attribute> attributes) {
  const auto samples = static_cast<int64_t>(part.tokens.packing->lengths.size());
  if (part.k.size(0) != samples)
    throw Error(ErrorKind::shape, "cross-attention of a pack",
                "has keys of " + std::to_string(part.k.size(0)) + " rows for " + std::to_string(samples) + " samples",
                "give the text one row for each sample of the pack");
  const auto here = tokens_here(part.tokens, part.q.size(1));
  const auto some = [](int64_t count) { return count > 0; };
  const auto begin = std::find_if(here.begin(), here.end(), some);
  const auto end = std::find_if(here.rbegin(), std::make_reverse_iterator(begin), some).base();
  const int64_t first = begin - here.begin(), rows = end - begin, row_keys = part.k.size(1);
  std::vector<int64_t> keys(static_cast<size_t>(rows), row_keys);
  if (!part.key_lengths.empty()) std::copy_n(part.key_lengths.begin() + first, rows, keys.begin());
  const bool are_whole = std::all_of(keys.begin(), keys.end(), [&](int64_t count) { return count == row_keys; });
  const auto of_rows = [&](const Tensor& x) {
    if (!x.defined()) return x;
    if (are_whole) return x.narrow(0, first, rows).flatten(0, 1).unsqueeze(0);
    Tensors own;
    for (int64_t i = 0; i < rows; ++i) own.push_back(x[first + i].narrow(0, 0, keys[static_cast<size_t>(i)]));
    return torch::cat(own).unsqueeze(0);
  };
  OpInputs in{{part.q, of_rows(part.k), of_rows(part.v), of_rows(part.key_mask_BS)}, std::move(attributes)};
  in.attributes["lengths"] = std::vector<int64_t>(begin, end);
  in.attributes["key_lengths"] = std::move(keys);
  return in;
}

Tensor cross(const OpTable& table, const AttentionCall& call) {
  const auto& part = call.parts[0];
  if (part.tokens.packing) return table.run("attention", cross_of_pack(part, attributes_of(call))).at(0);
  OpInputs in{{part.q, part.k, part.v, part.key_mask_BS}, attributes_of(call)};
  if (call.bias.defined()) in.tensors.push_back(call.bias);
  return table.run("attention", in).at(0);
}

Tensor of_rows(const OpTable& table, const AttentionCall& call, const std::function<Tensor(const Tensor&)>& rows) {
  const auto& part = call.parts[0];
  return table
      .run("attention", {{rows(part.q), rows(part.k), rows(part.v), rows(part.key_mask_BS)}, attributes_of(call)})
      .at(0);
}

// The tokens of a pack's sample, [1, F * P, …], in the order of another: frames last.
Tensor transposed(const Tensor& x, int64_t slow) { return x.unflatten(1, {slow, -1}).transpose(1, 2).flatten(1, 2); }

// Each frame, or each place in all frames, is a sample of its own.
Tensor of_pack(const OpTable& table, const AttentionCall& call) {
  const auto& part = call.parts[0];
  const auto samples = lengths_of(part);
  const auto& grids = part.tokens.packing->grids;
  const bool temporal = call.pattern == Pattern::temporal;
  auto attributes = attributes_of(call);
  std::vector<int64_t> lengths;
  for (const auto& grid : grids) {
    const int64_t places = grid.rows * grid.columns;
    lengths.insert(lengths.end(), static_cast<size_t>(temporal ? places : grid.frames),
                   temporal ? grid.frames : places);
  }
  attributes["lengths"] = std::move(lengths);
  const auto by_place = [&](const Tensor& x, bool back) {
    if (!temporal || !x.defined()) return x;
    auto pieces = x.split_with_sizes(samples, 1);
    for (size_t i = 0; i < pieces.size(); ++i)
      pieces[i] = transposed(pieces[i], back ? grids[i].rows * grids[i].columns : grids[i].frames);
    return torch::cat(pieces, 1);
  };
  return by_place(table
                      .run("attention", {{by_place(part.q, false), by_place(part.k, false), by_place(part.v, false),
                                          by_place(part.key_mask_BS, false)},
                                         std::move(attributes)})
                      .at(0),
                  true);
}

// [B, F * R, N, K] -> [B * F, R, N, K], attend inside a frame.
Tensor spatial(const OpTable& table, const AttentionCall& call) {
  const int64_t frames = call.parts[0].tokens.grid.frames;
  const auto rows = [&](const Tensor& x) { return x.defined() ? x.unflatten(1, {frames, -1}).flatten(0, 1) : x; };
  return of_rows(table, call, rows).unflatten(0, {-1, frames}).flatten(1, 2);
}

// [B, F * R, N, K] -> [B * R, F, N, K], attend along the frames.
Tensor temporal(const OpTable& table, const AttentionCall& call) {
  const int64_t frames = call.parts[0].tokens.grid.frames, places = call.parts[0].q.size(1) / frames;
  const auto rows = [&](const Tensor& x) {
    return x.defined() ? x.unflatten(1, {frames, places}).transpose(1, 2).flatten(0, 1) : x;
  };
  return of_rows(table, call, rows).unflatten(0, {-1, places}).transpose(1, 2).flatten(1, 2);
}

Tensors run(const OpTable& table, const AttentionCall& call) {
  check_call(call);
  switch (call.pattern) {
    case Pattern::cross: return {cross(table, call)};
    case Pattern::spatial: return {call.parts[0].tokens.packing ? of_pack(table, call) : spatial(table, call)};
    case Pattern::temporal: return {call.parts[0].tokens.packing ? of_pack(table, call) : temporal(table, call)};
    case Pattern::full: break;
  }
  return full(table, call);
}

}  // namespace

void check_call(const AttentionCall& call) {
  if (call.parts.empty()) refuse("was given no sequence", "give q, k and v of one at least");
  if (call.parts.size() > 1 && call.pattern != Pattern::full)
    refuse("was given several sequences and a pattern other than full", "use Pattern::full, or one sequence");
  for (const auto& part : call.parts) check_part(part, call.parts[0], call.pattern);
  check_packs(call);
  check_key_lengths(call);
  if (call.causal && call.pattern == Pattern::cross)
    refuse("is to be causal, to keys of another sequence", "leave causal = false for Pattern::cross");
  if (!call.bias.defined()) return;
  if (call.parts[0].tokens.packing || call.pattern == Pattern::spatial || call.pattern == Pattern::temporal)
    refuse("was given a bias for a pack, or for attention in space or in time",
           "a bias is for full and cross-attention of rows that are not packed");
  if (call.bias.dim() != 4) refuse("was given a bias of " + c10::str(call.bias.sizes()), "give [B, N, T, S]");
}

AttentionOp plain_attention(const OpTable& table) {
  return {[&table](const AttentionCall& call) { return run(table, call); }, &table};
}

}  // namespace ditto
