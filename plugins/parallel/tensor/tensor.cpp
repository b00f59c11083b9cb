// Tensor parallelism: every layer cut as it declares (M. Shoeybi et al., 2019, arXiv:1909.08053), under the rule of
// transposition: terms of a sum are followed by an all-reduce both ways, and nothing stands before a layer whose
// outputs are cut. With sequence regions (V. Korthikanti et al., 2022, arXiv:2205.05198) tokens are cut between such
// layers too: one that takes whole inputs gathers them, one whose outputs are terms sums and scatters.
//
// Under run.numerics = "one" it is the rule of replicated.h instead: sums are of nodes, and what is whole has a
// gradient that is whole on every rank.
//
// Copies, by choice: tables of labels, a few hundred rows of the width, which a cut would make cost one more exchange
// in every forward; norms of tokens; second biases.
#include <map>
#include <numeric>

#include <torch/types.h>

#include <ditto/error.h>
#include <ditto/parallel/replicated.h>
#include <ditto/parallel/token_cut.h>

namespace ditto {
namespace {

using torch::Tensor;

// "1, 2 or 4": the degrees that divide a count.
std::string divisors(int64_t count) {
  std::vector<std::string> list;
  for (int64_t degree = 1; degree <= count; ++degree)
    if (count % degree == 0) list.push_back(std::to_string(degree));
  std::string text = list[0];
  for (size_t i = 1; i < list.size(); ++i) text += (i + 1 == list.size() ? " or " : ", ") + list[i];
  return text;
}

// What the layers of a layout can be cut into, at most.
int64_t common_count(const Layout& layout) {
  int64_t common = 0;
  for (const auto& entry : layout.entries)
    if (const auto* piece = entry.declared(Axis::tensor))
      for (const int64_t part : piece->parts) common = std::gcd(common, part / piece->unit);
  return common;
}

// The field that tells how many tokens the ranks' regions of a sequence add up to, by its shape [0, tokens]: it holds
// no number.
std::string whole_of(const std::string& sequence) { return "tensor.whole" + (sequence.empty() ? "" : "." + sequence); }

class TensorParallel final : public ParallelStrategy {
 public:
  struct Options {
    bool sequence = false;
    void read(OptionReader& option) {
      option("sequence", sequence, "the tensor ranks share the tokens between the layers that are cut")
          .changes(Effect::bits);
    }
  };

  TensorParallel(const Options& o, const Needs& needs)
      : mesh_(*needs.mesh),
        group_(needs.mesh->group(Axis::tensor)),
        sequence_(o.sequence && needs.streams),
        token_leaf_(group_.size() > 1 ? needs.token_leaf : 0) {
    if (sequence_ && !needs.token_local)
      throw Error(ErrorKind::config, "parallel.sequence",
                  "cuts tokens, and this model does not say that its blocks mix them through attention alone "
                  "(token_local)",
                  "leave parallel.sequence = false, or choose another model; in your own, return true from "
                  "token_local() if its blocks do");
  }

  std::optional<Axis> axis() const override { return Axis::tensor; }
  bool exact() const override { return true; }

  void shard(Layout& layout) override {
    if (sequence_) {
      check_places(layout, group_, "parallel.sequence");
      refuse_side_by_side(layout, "parallel.sequence", "leave parallel.sequence = false for this model");
    }
    for (const auto& entry : layout.entries) check(entry, layout);
    for (auto& entry : layout.entries) {
      const auto* declared = entry.declared(Axis::tensor);
      if (!declared) continue;
      if (token_leaf_ > 0)
        set_nodes(entry);
      else
        set_exchanges(entry);
      entry.layer->share = {group_.rank(), group_.size()};
      Cut piece{declared->dim, declared->parts, group_.rank(), group_.size()};
      entry.tensor.set_data(cut(entry.tensor, piece));
      entry.cuts[Axis::tensor] = std::move(piece);
    }
  }

  // Attention sees all tokens: what it reads beside them, constants, stays whole.
  void split(Stream& stream) override {
    if (!sequence_ || !stream.x_BTD.defined()) return;
    regions_.clear();
    std::map<std::string, int64_t> counts{{"", stream.x_BTD.size(1)}};
    for (const auto& [name, field] : stream.extra)
      if (field.own && field.token_dim >= 0 && field.role == Role::evolving)
        counts[name] = field.tensor.size(field.token_dim);
    for (const auto& [name, tokens] : counts) {
      regions_[name] = region_of(tokens);
      stream.extra[whole_of(name)] = {torch::empty({0, tokens}, stream.x_BTD.options()), -1, Role::carried};
    }
    begin_regions(stream);
    for (const auto& field : stream.fields())
      if (is_cut(field)) {
        const auto region = region_of(field.tensor->size(field.token_dim));
        *field.tensor = own_tokens(*field.tensor, field.token_dim, region);
      }
  }

  void join(Stream& stream) override {
    if (!sequence_) return;
    enter(stream);
    for (const auto& field : stream.fields())
      if (is_cut(field)) *field.tensor = gather_tokens(*field.tensor, field.token_dim, region(stream, field));
    for (const auto& [name, region] : regions_) {
      stream.extra.erase(whole_of(name));
      (name.empty() ? stream : *stream.extra.at(name).own).region_offset = 0;
    }
  }

  // Micro-batches of different lengths may be under way at once, and run again in backward.
  UnitRun wrap_unit(UnitRun run) override {
    if (!sequence_) return run;
    return [this, run = std::move(run)](const Unit& unit, UnitCall& call) {
      if (unit.kind == Unit::Kind::block) {
        enter(call.stream);
        begin_regions(call.stream);
        if (token_leaf_ > 0) {
          auto& here = call.ctx.ops.leaves();
          const RestoredLeaves scope(here);
          for (const auto& [name, region] : regions_)
            here.of(name).between = regions_of_leaves(region.tokens, here.of(name).inside);
          return run(unit, call);
        }
      }
      run(unit, call);
    };
  }

  // What is whole has a whole gradient on every rank already.
  AxisSet sums(const LayoutEntry&, const StepPlan&) const override {
    return token_leaf_ > 0 ? AxisSet{Axis::tensor} : AxisSet{};
  }

 private:
  static bool is_cut(const Field& field) { return field.role == Role::evolving && field.token_dim >= 0; }

  void check(const LayoutEntry& entry, const Layout& layout) const {
    const auto* piece = entry.declared(Axis::tensor);
    if (!piece) return;
    for (const int64_t part : piece->parts)
      if (const int64_t count = part / piece->unit; count % group_.size() != 0)
        throw Error(ErrorKind::config, "parallel.tensor",
                    std::to_string(group_.size()) + " does not divide the " + std::to_string(count) + " " +
                        entry.layer->cut(Axis::tensor)->units + " of \"" + entry.layer_name() + "\"",
                    "for this model use " + divisors(common_count(layout)));
    if (token_leaf_ > 0) check_leaves(entry);
  }

  void check_leaves(const LayoutEntry& entry) const {
    const auto leaves = entry.layer->leaves_to_cut();
    if (!leaves)
      throw Error(ErrorKind::config, "run.numerics",
                  "\"one\" does not go with parallel.tensor = " + std::to_string(group_.size()) + ": layer \"" +
                      entry.layer_name() + "\" does not say in which leaves it sums what would be cut",
                  "leave parallel.tensor = 1 for this model, or set run.numerics = \"fast\"");
    if (*leaves % group_.size() != 0)
      throw Error(ErrorKind::config, "parallel.tensor",
                  std::to_string(group_.size()) + " does not divide the " + std::to_string(*leaves) +
                      " leaves of which one number makes the sums of \"" + entry.layer_name() + "\"",
                  "use " + divisors(*leaves) + ", or run.numerics = \"fast\"");
  }

  // Of the layer of a parameter that is cut. Only blocks see tokens in regions, and what is made of conditioning has no
  // tokens to exchange.
  void set_exchanges(const LayoutEntry& entry) {
    using Values = LayerCut::Values;
    CutLayer& layer = *entry.layer;
    const LayerCut& cut = *layer.cut(Axis::tensor);
    const bool regions = sequence_ && entry.unit.kind == Unit::Kind::block && !cut.condition;
    if (regions && cut.input == Values::whole)
      layer.before = [this, sequence = cut.sequence, name = entry.layer_name()](const Tensor& x) {
        const auto& region = region_of(sequence, name);
        check_tokens(x, region.lengths[static_cast<size_t>(group_.rank())], region, name);
        return gather_tokens(x, 1, region);
      };
    if (cut.output == Values::partial) {
      layer.adds_bias = group_.rank() == 0;
      if (regions)
        layer.after = [this, sequence = cut.sequence, name = entry.layer_name()](const Tensor& y) {
          const auto& region = region_of(sequence, name);
          check_tokens(y, region.tokens, region, name);
          return scatter_tokens(y, 1, region);
        };
      else
        layer.after = [this](const Tensor& y) { return transposed::all_reduce(y, group_); };
    }
    if (cut.gathered)
      layer.after = [this, regions, sequence = cut.sequence, name = entry.layer_name(), dim = cut.channels,
                     parts = cut.parameters[0].parts](const Tensor& y) {
        const auto whole = gather_parts(y, parts, dim, group_);
        if (!regions) return whole;
        const auto& region = region_of(sequence, name);
        return whole.narrow(1, start_of(region), region.lengths[static_cast<size_t>(group_.rank())]);
      };
  }

  // Under run.numerics = "one".
  void set_nodes(const LayoutEntry& entry) {
    using Values = LayerCut::Values;
    CutLayer& layer = *entry.layer;
    const LayerCut& cut = *layer.cut(Axis::tensor);
    const bool regions = sequence_ && entry.unit.kind == Unit::Kind::block && !cut.condition;
    const auto name = entry.layer_name();
    const auto tokens = [this, sequence = cut.sequence, name](const Tensor& x, bool whole) -> const Region& {
      const auto& region = region_of(sequence, name);
      check_tokens(x, whole ? region.tokens : region.lengths[static_cast<size_t>(group_.rank())], region, name);
      return region;
    };
    if (const int64_t leaves = *layer.leaves_to_cut(); leaves > 0) {
      const auto share = std::make_shared<const LeafShare>(LeafShare::equal(group_, leaves, "parallel.tensor", name));
      CutLayer::Nodes nodes;
      for (const auto& node : share->nodes()) nodes.leaves.push_back(node.end - node.begin);
      nodes.copies_of_rows = [share](const Tensor& rows) { return replicated::copies(rows, share); };
      nodes.sum_of_rows = [share](const Tensors& terms) { return replicated::sum(terms, share); };
      if (cut.input == Values::whole)
        nodes.copies = [share, regions, tokens](const Tensor& x) {
          return regions ? replicated::copies(x, share, 1, tokens(x, false).lengths) : replicated::copies(x, share);
        };
      if (cut.output == Values::partial)
        nodes.sum = [share, regions, tokens](const Tensors& terms) {
          return regions ? replicated::sum(terms, share, 1, tokens(terms.at(0), true).lengths)
                         : replicated::sum(terms, share);
        };
      layer.nodes = std::make_shared<const CutLayer::Nodes>(std::move(nodes));
    }
    if (regions && cut.input == Values::whole && cut.output == Values::partial) {
      layer.before = [this, tokens](const Tensor& x) {
        return replicated::gather(x, group_, 1, tokens(x, false).lengths);
      };
      layer.after = [this, tokens](const Tensor& y) { return replicated::part(y, group_, 1, tokens(y, true).lengths); };
    }
    if (cut.gathered)
      layer.after = [this, regions, tokens, dim = cut.channels, parts = cut.parameters[0].parts](const Tensor& y) {
        const std::vector<int64_t> equal(static_cast<size_t>(group_.size()), y.size(dim));
        const auto whole = in_parts(replicated::gather(y, group_, dim, equal), parts, dim, group_);
        return regions ? replicated::part(whole, group_, 1, tokens(whole, true).lengths) : whole;
      };
  }

  // The ranks' pieces of the outputs, each with its share of every part, as whole parts.
  static Tensor gather_parts(const Tensor& y, const std::vector<int64_t>& parts, int64_t dim, const Group& group) {
    return in_parts(transposed::all_gather(y, group, dim), parts, dim, group);
  }
  static Tensor in_parts(const Tensor& all, const std::vector<int64_t>& parts, int64_t dim, const Group& group) {
    if (parts.size() == 1) return all;
    std::vector<int64_t> lengths;
    for (int rank = 0; rank < group.size(); ++rank)
      for (const int64_t part : parts) lengths.push_back(part / group.size());
    const auto pieces = all.split_with_sizes(lengths, dim);
    std::vector<Tensor> ordered;
    for (size_t part = 0; part < parts.size(); ++part)
      for (int rank = 0; rank < group.size(); ++rank) ordered.push_back(pieces[rank * parts.size() + part]);
    return torch::cat(ordered, dim);
  }

  // How the ranks share a sequence's tokens.
  struct Region {
    int64_t tokens;
    std::vector<int64_t> lengths;
  };
  Region region_of(int64_t tokens) const {
    Region region{tokens, {}};
    const int64_t n = group_.size();
    if (token_leaf_ > 0) return {tokens, leaves_of(tokens).lengths()};
    for (int64_t i = 0; i < n; ++i) region.lengths.push_back((i + 1) * tokens / n - i * tokens / n);
    return region;
  }
  const Region& region_of(const std::string& sequence, const std::string& layer) const {
    const auto it = regions_.find(sequence);
    if (it != regions_.end()) return it->second;
    throw Error(ErrorKind::plugin, "layer \"" + layer + "\"",
                "is of tokens of the sequence \"" + sequence + "\", which the stream does not have",
                "name an extra of the stream that has tokens of its own (Split::of)");
  }
  // Of a field: its own sequence's, or that of another extra that has as many tokens in the whole.
  const Region& region(const Stream& stream, const Field& field) const {
    if (field.sequence == &stream) return regions_.at("");
    for (const auto& [name, region] : regions_)
      if (!name.empty() && stream.extra.at(name).own && &*stream.extra.at(name).own == field.sequence) return region;
    throw Error(ErrorKind::plugin, "stream field \"" + field.name + "\"", "came after the tokens were cut",
                "set evolving fields with tokens of their own in tokens()");
  }
  TokenLeaves leaves_of(int64_t tokens) const {
    const int64_t leaves = (tokens + token_leaf_ - 1) / token_leaf_;
    return {LeafShare::equal(group_, leaves, "parallel.sequence", "a sample's tokens"), token_leaf_, tokens};
  }
  // Of all of a sample's tokens, of which `slices` are the context ranks'; null: there are none.
  std::shared_ptr<const TokenLeaves> regions_of_leaves(int64_t tokens,
                                                       const std::shared_ptr<const TokenLeaves>& slices) const {
    if (!slices) return std::make_shared<const TokenLeaves>(leaves_of(tokens));
    const int64_t n = group_.size();
    std::vector<LeafRun> runs;
    for (const auto& [begin, end] : slices->share.runs())
      for (int64_t i = 0; i < n; ++i)
        runs.push_back({begin + i * (end - begin) / n, begin + (i + 1) * (end - begin) / n});
    const auto& group = mesh_.group({Axis::context, Axis::tensor});
    return std::make_shared<const TokenLeaves>(TokenLeaves{{group, std::move(runs)}, token_leaf_, slices->tokens});
  }
  int64_t start_of(const Region& region) const {
    return std::accumulate(region.lengths.begin(), region.lengths.begin() + group_.rank(), int64_t{0});
  }
  // From here on, exchanges are of this stream's tokens.
  void enter(const Stream& stream) {
    regions_ = {{"", region_of(stream.extra.at(whole_of("")).tensor.size(1))}};
    for (const auto& [name, field] : stream.extra)
      if (const auto it = stream.extra.find(whole_of(name)); field.own && it != stream.extra.end())
        regions_[name] = region_of(it->second.tensor.size(1));
  }
  void begin_regions(Stream& stream) const {
    for (const auto& [name, region] : regions_)
      (name.empty() ? stream : *stream.extra.at(name).own).region_offset = start_of(region);
  }
  bool are_equal(const Region& region) const { return region.tokens % group_.size() == 0 && token_leaf_ == 0; }

  // The other ranks wait for pieces of the sizes that the cut leaves.
  void check_tokens(const Tensor& x, int64_t expected, const Region& region, const std::string& layer) const {
    if (x.dim() >= 3 && x.size(1) == expected) return;
    throw Error(ErrorKind::plugin, "layer \"" + layer + "\"",
                "is given a tensor of " + c10::str(x.sizes()) + ", where parallel.sequence leaves " +
                    std::to_string(expected) + " of the stream's " + std::to_string(region.tokens) + " tokens",
                "a layer of a block that is cut takes all its tokens, as [B, T, ...]; one that takes others is "
                "Split::none(), of_condition(), or of(SEQUENCE)");
  }
  Tensor own_tokens(const Tensor& x, int64_t dim, const Region& region) const {
    if (token_leaf_ > 0) return replicated::part(x, group_, dim, region.lengths);
    return x.narrow(dim, start_of(region), region.lengths[static_cast<size_t>(group_.rank())]);
  }
  Tensor gather_tokens(const Tensor& x, int64_t dim, const Region& region) const {
    if (token_leaf_ > 0) return replicated::gather(x, group_, dim, region.lengths);
    return are_equal(region) ? transposed::all_gather(x, group_, dim)
                             : transposed::all_gather(x, group_, dim, region.lengths);
  }
  Tensor scatter_tokens(const Tensor& y, int64_t dim, const Region& region) const {
    return are_equal(region) ? transposed::reduce_scatter(y, group_, dim)
                             : transposed::reduce_scatter(y, group_, dim, region.lengths);
  }

  const Mesh& mesh_;
  const Group& group_;
  const bool sequence_;
  const int64_t token_leaf_;               // under run.numerics = "one", on several ranks; else 0
  std::map<std::string, Region> regions_;  // of the stream's sequences by name, "" its own
};

}  // namespace
}  // namespace ditto

DITTO_PLUGIN(ParallelStrategy, ditto::TensorParallel, "tensor", "1.2.0", "Apache-2.0",
             "layers cut as they declare: columns, rows, heads, channels; sequence regions")
