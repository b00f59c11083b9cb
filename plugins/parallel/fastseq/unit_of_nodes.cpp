#include "unit_of_nodes.h"

#include <numeric>

#include <torch/types.h>

#include <ditto/error.h>

namespace ditto {

using torch::Tensor;

namespace {

// A context rank's tokens, where its tensor ranks have the same ones: each then gathers its share.
std::vector<int64_t> shares(int64_t tokens, int64_t ranks) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < ranks; ++i) lengths.push_back((i + 1) * tokens / ranks - i * tokens / ranks);
  return lengths;
}

// The leaves of heads: a tensor rank has a run of them, of which each context rank has a run. Members of the group of
// both axes are in the order of context, then tensor.
std::shared_ptr<const LeafShare> share_of_heads(const Mesh& mesh, int64_t leaves) {
  const int64_t contexts = mesh.size(Axis::context), tensors = mesh.size(Axis::tensor);
  const int64_t each = leaves / (contexts * tensors);
  std::vector<LeafRun> runs;
  for (int64_t context = 0; context < contexts; ++context)
    for (int64_t tensor = 0; tensor < tensors; ++tensor) {
      const int64_t begin = (tensor * contexts + context) * each;
      runs.push_back({begin, begin + each});
    }
  return std::make_shared<const LeafShare>(mesh.group({Axis::context, Axis::tensor}), std::move(runs));
}

}  // namespace

Tensor own_share(const Tensor& x, const std::vector<int64_t>& parts, int64_t dim, const Group& group) {
  const auto ranks = static_cast<size_t>(group.size());
  std::vector<int64_t> lengths;
  for (const int64_t part : parts)
    for (size_t rank = 0; rank < ranks; ++rank) lengths.push_back(part / group.size());
  const auto pieces = x.split_with_sizes(lengths, dim);
  Tensors by_rank;
  for (size_t rank = 0; rank < ranks; ++rank)
    for (size_t part = 0; part < parts.size(); ++part) by_rank.push_back(pieces[part * ranks + rank]);
  return replicated::part(torch::cat(by_rank, dim), group, dim,
                          std::vector<int64_t>(ranks, x.size(dim) / group.size()));
}

UnitOfNodes::UnitOfNodes(const AttentionUnitPart& part, const Mesh& mesh, LeavesHere& here, Context& parameters)
    : heads_(*part.heads),
      rows_(part.rows),
      here_(here),
      slices_(here.of(heads_.split.sequence).inside),
      between_(here.of(heads_.split.sequence).between),
      weight_(heads_.weight),
      bias_(heads_.bias),
      term_(heads_.term),
      nodes_(heads_.nodes) {
  share_heads(mesh, parameters);
  if (rows_) trade_tokens(mesh.group(Axis::context));
}

UnitOfNodes::~UnitOfNodes() {
  heads_.weight = weight_, heads_.bias = bias_, heads_.term = term_, heads_.nodes = nodes_;
  if (rows_) rows_->before = rows_before_;
  inside() = slices_;
}

std::shared_ptr<const TokenLeaves>& UnitOfNodes::inside() const { return here_.of(heads_.split.sequence).inside; }

void UnitOfNodes::share_heads(const Mesh& mesh, Context& parameters) {
  if (!slices_)
    throw Error(ErrorKind::plugin, "attention unit",
                "maps tokens of the sequence \"" + heads_.split.sequence + "\", which the stream does not have",
                "name an extra of the stream that has tokens of its own (Split::of)");
  const auto& group = mesh.group(Axis::context);
  const auto& tensor = mesh.group(Axis::tensor);
  std::vector<int64_t> parts;  // that a tensor cut has left
  for (const int64_t part : heads_.split.parts) parts.push_back(part / tensor.size());
  const auto own = [&](const Parameter& whole) {
    return Parameter(own_share(whole(parameters), parts, 0, group), whole.init());
  };
  heads_.weight = own(weight_);
  if (bias_.defined()) heads_.bias = own(bias_);
  if (term_)
    heads_.term = std::make_shared<const LinearModule::Term>(
        LinearModule::Term{term_->a, own(term_->b), term_->scale, term_->leaves, term_->of_condition, term_->sequence});

  const auto share = share_of_heads(mesh, heads_.leaves.out.at(0));
  const bool regions = between_ != slices_;
  const auto own_lengths = shares(slices_->lengths()[static_cast<size_t>(group.rank())], tensor.size());
  std::vector<int64_t> lengths;  // of all members' tokens
  if (regions)
    lengths = between_->lengths();
  else
    for (const int64_t length : slices_->lengths())
      for (const int64_t piece : shares(length, tensor.size())) lengths.push_back(piece);
  CutLayer::Nodes nodes;
  for (const auto& node : share->nodes()) nodes.leaves.push_back(node.end - node.begin);
  nodes.copies = [this, share, lengths, regions, own_lengths, &tensor](const Tensor& x) {
    const int64_t expected = regions ? lengths[static_cast<size_t>(share->group().rank())]
                                     : std::accumulate(own_lengths.begin(), own_lengths.end(), int64_t{0});
    if (x.size(1) != expected)
      throw Error(ErrorKind::shape, "attention unit",
                  "of " + std::to_string(x.size(1)) + " tokens, where the cut leaves " + std::to_string(expected),
                  "an attention unit takes the tokens of the stream, all of them and no others");
    inside().reset();  // from here on all tokens are here
    return replicated::copies(regions ? x : replicated::part(x, tensor, 1, own_lengths), share, 1, lengths);
  };
  nodes.copies_of_rows = [share](const Tensor& rows) { return replicated::copies(rows, share); };
  heads_.nodes = std::make_shared<const CutLayer::Nodes>(std::move(nodes));
}

// All tokens of this rank's heads for this rank's tokens of all heads.
void UnitOfNodes::trade_tokens(const Group& group) {
  rows_before_ = rows_->before;
  rows_->before = [this, &group, inner = rows_before_](const Tensor& y_BTH) {
    const std::vector<int64_t> widths(static_cast<size_t>(group.size()), y_BTH.size(2));
    const auto y = transposed::all_to_all(y_BTH, group, 1, slices_->lengths(), 2, widths);
    inside() = slices_;
    return inner ? inner(y) : y;
  };
}

}  // namespace ditto
