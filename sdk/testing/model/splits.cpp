#include "model/splits.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include "numbers.h"

namespace ditto::testing {

using torch::Tensor;
using Values = LayerCut::Values;
using Columns = std::set<int64_t>;

namespace {

constexpr int64_t kColumnsTried = 8;  // of a layer's inputs

std::string list(const std::vector<int64_t>& numbers) { return fmt::format("{{{}}}", fmt::join(numbers, ", ")); }

std::string heads_text(std::vector<int64_t> widths, int64_t unit) {
  for (int64_t& width : widths) width /= unit;
  return "Split::heads(" + list(widths) + ", " + std::to_string(unit) + ")";
}

std::string split_text(const FlowNode& node) {
  const auto* cut = cut_of(node);
  if (!cut) return "no Split";
  const auto& first = cut->parameters[0];
  if (cut->input == Values::cut) return cut->output == Values::cut ? "Split::along(…)" : "Split::rows()";
  if (cut->output != Values::cut) return "a cut of its own";
  if (cut->are_heads) return heads_text(first.parts, first.unit);
  return "Split::columns(" + list(first.parts) + ")" + (cut->gathered ? ".gathered()" : "");
}

int64_t channels_of(const FlowNode& node) {
  const auto* cut = cut_of(node);
  return cut ? cut->channels : -1;
}

// Whether a layer's first parameter is cut as its inputs or outputs are: one of somebody's own need not say so.
bool is_along(const ParameterCut& cut, const Tensor& x, int64_t dim) {
  return std::accumulate(cut.parts.begin(), cut.parts.end(), int64_t{0}) == x.size(dim);
}

// What attention's heads are made of: which of q, k and v, its head, and a layer's outputs.
struct Head {
  size_t tensor;
  int64_t number, of;
  Columns columns;
};

class SplitTest {
 public:
  explicit SplitTest(const std::vector<FlowNode>& flow) : flow_(flow) {
    for (const auto& node : flow_) {
      cut_.push_back(leaves_cut(node));
      // What the ranks sum is whole on each of them: what is made of it by a norm over heads is not made of other
      // ranks' heads.
      if (const auto* cut = cut_of(node); cut && cut->output == Values::partial)
        for (const Tensor& sum : node.outputs)
          if (sum.requires_grad())
            hooks_.emplace_back(sum, sum.register_hook([this, of = sum.unsafeGetTensorImpl()](const Tensor& grad) {
              return of == probed_ ? grad : torch::zeros_like(grad);
            }));
    }
  }
  ~SplitTest() {
    for (const auto& [sum, hook] : hooks_) sum.remove_hook(hook);
  }
  SplitTest(const SplitTest&) = delete;
  SplitTest& operator=(const SplitTest&) = delete;

  std::string run() const {
    for (size_t i = 0; i < flow_.size(); ++i) {
      const auto problem = flow_[i].is_attention() ? attention(flow_[i]) : layer(i);
      if (!problem.empty()) return problem;
    }
    return {};
  }

 private:
  // The numbers along `dim` of `output` that some numbers are made of.
  Columns made_of(const Tensor& numbers, const Tensor& output, int64_t dim) const {
    probed_ = output.unsafeGetTensorImpl();
    const auto seed = normal("columns", numbers.sizes().vec());
    const auto grad = torch::autograd::grad({(numbers * seed).sum()}, {output}, {}, /*retain_graph=*/true,
                                            /*create_graph=*/false, /*allow_unused=*/true)[0];
    Columns columns;
    if (!grad.defined()) return columns;
    const auto used = grad.abs().transpose(dim, 0).flatten(1).sum(1).gt(0);
    for (int64_t i = 0; i < used.size(0); ++i)
      if (used[i].item<bool>()) columns.insert(i);
    return columns;
  }

  bool any_cut(const std::vector<size_t>& nodes) const {
    return std::any_of(nodes.begin(), nodes.end(), [&](size_t i) { return cut_[i]; });
  }
  bool leaves_cut(const FlowNode& node) const {
    if (node.is_attention())
      return std::any_of(node.from.begin(), node.from.end(), [&](const auto& from) { return any_cut(from); });
    const auto* cut = cut_of(node);
    return cut && cut->output == Values::cut && !cut->gathered;
  }

  // --- attention ---

  static const Tensor& tensor_of(const FlowNode& attention, size_t i) {
    const auto& part = attention.parts[i / 3];
    return i % 3 == 0 ? part.q : i % 3 == 1 ? part.k : part.v;
  }

  std::vector<Head> heads_of(const FlowNode& attention, size_t layer) const {
    std::vector<Head> heads;
    for (size_t t = 0; t < attention.from.size(); ++t) {
      if (!std::count(attention.from[t].begin(), attention.from[t].end(), layer)) continue;
      const Tensor& x = tensor_of(attention, t);
      for (int64_t h = 0; h < x.size(2); ++h)
        heads.push_back(
            {t, h, x.size(2), made_of(x.select(2, h), flow_[layer].outputs.at(0), channels_of(flow_[layer]))});
    }
    return heads;
  }

  // Parts and unit of the Split that keeps heads whole; none where they are not runs of outputs.
  static std::optional<std::pair<std::vector<int64_t>, int64_t>> right_heads(std::vector<Head> heads, int64_t outputs) {
    if (heads.empty()) return {};
    std::map<int64_t, Columns> rows;  // by head, where q, k and v of one lie side by side
    std::sort(heads.begin(), heads.end(), [](const Head& a, const Head& b) { return a.columns < b.columns; });
    std::vector<int64_t> parts;
    int64_t end = 0;
    const auto unit = static_cast<int64_t>(heads[0].columns.size());
    bool is_run = unit > 0;
    size_t tensor = heads[0].tensor;
    for (const Head& head : heads) {
      is_run = is_run && static_cast<int64_t>(head.columns.size()) == unit && *head.columns.begin() == end &&
               *head.columns.rbegin() == end + unit - 1;
      rows[head.number].insert(head.columns.begin(), head.columns.end());
      if (parts.empty() || head.tensor != tensor || head.number == 0) parts.push_back(0);
      tensor = head.tensor;
      parts.back() += unit;
      end += unit;
    }
    if (!is_run || end != outputs) return {};
    if (parts.size() <= 3) return std::pair(parts, unit);
    const int64_t together = outputs / static_cast<int64_t>(rows.size());
    for (const auto& [number, columns] : rows)
      if (static_cast<int64_t>(columns.size()) != together || *columns.begin() != number * together ||
          *columns.rbegin() != (number + 1) * together - 1)
        return {};
    return std::pair(std::vector<int64_t>{outputs}, together);
  }

  // The Split that a layer which feeds attention should have; empty: it feeds none, or there is none.
  std::string expected_heads(size_t layer) const {
    for (const auto& node : flow_) {
      if (!node.is_attention() || flow_[layer].outputs.empty()) continue;
      const auto heads = heads_of(node, layer);
      if (heads.empty()) continue;
      const auto right = right_heads(heads, flow_[layer].outputs[0].size(channels_of(flow_[layer])));
      return right ? heads_text(right->first, right->second) : "a Split::heads(…) of whole heads";
    }
    return {};
  }

  std::string attention(const FlowNode& node) const {
    std::set<size_t> layers;
    bool some_cut = false;
    for (const auto& from : node.from) {
      layers.insert(from.begin(), from.end());
      some_cut = some_cut || any_cut(from);
    }
    for (const size_t i : layers) {
      if (flow_[i].is_attention() || flow_[i].outputs.empty()) continue;
      const auto problem = cut_[i] ? heads_kept(node, i) : some_cut ? not_cut(node, i) : "";
      if (!problem.empty()) return problem;
    }
    return {};
  }

  // Of two layers that feed the same attention, one is cut and the other is not.
  std::string not_cut(const FlowNode& node, size_t i) const {
    if (cut_of(flow_[i]) || flow_[i].unit != node.unit || heads_of(node, i).empty()) return {};
    return flow_[i].name + " has no Split, and what feeds the same attention has one: expected " + expected_heads(i);
  }

  std::string heads_kept(const FlowNode& node, size_t i) const {
    const auto& cut = *cut_of(flow_[i]);
    const auto& declared = cut.parameters[0];
    const auto heads = heads_of(node, i);
    if (heads.empty() || !is_along(declared, flow_[i].outputs[0], cut.channels)) return {};
    const auto right = right_heads(heads, flow_[i].outputs[0].size(cut.channels));
    const Tensor& q = tensor_of(node, heads[0].tensor);
    const auto wrong = [&](const std::string& what) {
      return fmt::format("{} has {}, and feeds attention with heads of width {}: {}; expected {}", flow_[i].name,
                         split_text(flow_[i]), q.size(3), what, expected_heads(i));
    };
    for (const int64_t degree : {int64_t{2}, most_ranks(declared)}) {
      if (degree < 2 || most_ranks(declared) % degree != 0) continue;
      const auto ranks = ranks_of(declared, degree);
      for (const Head& head : heads) {
        if (head.of % degree != 0)
          return wrong(fmt::format("it says that {} ranks can share it, of {} heads", degree, head.of));
        const int64_t rank = head.number / (head.of / degree);
        for (const int64_t column : head.columns)
          if (ranks[static_cast<size_t>(column)] != rank)
            return wrong(fmt::format("of {} ranks the one with {} head {} lacks output {} of it", degree,
                                     std::array{"query", "key", "value"}[head.tensor % 3], head.number, column));
      }
    }
    if (!cut.are_heads) return wrong("it does not say that its outputs are heads, of which none may be cut");
    if (right && right->second != declared.unit)
      return wrong("it says that the heads are of width " + std::to_string(declared.unit));
    return {};
  }

  // --- layers ---

  std::string layer(size_t i) const {
    const FlowNode& node = flow_[i];
    if (node.from.empty()) return {};
    const auto* cut = cut_of(node);
    const bool takes_cut = cut && cut->input == Values::cut;
    for (const size_t p : node.from[0]) {
      if (!takes_cut && cut_[p])
        return fmt::format("{} has {}, and is given a share of what {} makes: expected Split::rows()", node.name,
                           split_text(node), name_of(p));
      if (takes_cut && cut_[p])
        if (const auto problem = same_ranks(node, p); !problem.empty()) return problem;
    }
    return takes_cut ? shares(i) : "";
  }

  std::string name_of(size_t i) const {
    if (!flow_[i].is_attention()) return flow_[i].name;
    for (const auto& from : flow_[i].from)
      for (const size_t p : from)
        if (!flow_[p].is_attention()) return flow_[p].name + " by attention";
    return "attention";
  }

  // The layers of the same unit, without a Split, that a call is made of: directly, or by attention.
  std::vector<size_t> uncut_makers(size_t p, const FlowNode& of) const {
    if (flow_[p].unit != of.unit) return {};
    if (!flow_[p].is_attention()) {
      if (cut_of(flow_[p]) || flow_[p].outputs.empty()) return {};
      return {p};
    }
    std::vector<size_t> makers;
    for (const auto& from : flow_[p].from)
      for (const size_t q : from)
        if (!flow_[q].is_attention() && !cut_of(flow_[q]) && flow_[q].unit == of.unit) makers.push_back(q);
    return makers;
  }

  // What it takes has to come cut. Where it is whole, either the layer before lacks a Split, or this one is given the
  // stream and takes no share of that.
  std::string shares(size_t i) const {
    const FlowNode& node = flow_[i];
    std::vector<size_t> to_blame;
    bool is_given_stream = node.from[0].empty(), some_cut = false;
    for (const size_t p : node.from[0]) {
      some_cut = some_cut || cut_[p];
      if (cut_[p]) continue;
      const auto makers = uncut_makers(p, node);
      const bool as_wide = flow_[p].is_attention() || (!makers.empty() && flow_[p].outputs[0].size(channels_of(node)) ==
                                                                              node.input.size(channels_of(node)));
      if (makers.empty())
        is_given_stream = true;
      else if (as_wide)
        to_blame.insert(to_blame.end(), makers.begin(), makers.end());
    }
    if (!is_given_stream && !to_blame.empty()) {
      const size_t p = to_blame.front();
      const auto heads = expected_heads(p);
      return fmt::format("{} has no Split, and {}, which it feeds, has {} and takes a share of its inputs: expected {}",
                         flow_[p].name, node.name, split_text(node), heads.empty() ? columns_text(p) : heads);
    }
    if (some_cut || !is_given_stream) return {};
    const auto heads = expected_heads(i);
    return fmt::format("{} has {}, and its inputs are whole, in the stream's width: expected {}", node.name,
                       split_text(node), heads.empty() ? columns_text(i) : heads);
  }

  std::string columns_text(size_t i) const {
    return "Split::columns({" + std::to_string(flow_[i].outputs.at(0).size(channels_of(flow_[i]))) + "})";
  }

  // An input that is left to a rank is made of outputs that are left to the same one.
  std::string same_ranks(const FlowNode& node, size_t p) const {
    const FlowNode& maker = flow_[p];
    const auto& taken = cut_of(node)->parameters[0];
    const auto* cut = cut_of(maker);
    if (most_ranks(taken) % 2 != 0 || (cut && most_ranks(cut->parameters[0]) % 2 != 0)) return {};
    const auto here = ranks_of(taken, 2);
    const int64_t dim = channels_of(node), width = node.input.size(dim);
    if (!is_along(taken, node.input, dim)) return {};
    for (const Tensor& output : maker.outputs) {
      std::vector<int64_t> there;
      if (cut && !is_along(cut->parameters[0], output, cut->channels)) return {};
      if (cut)
        there = ranks_of(cut->parameters[0], 2);
      else if (output.size(2) % 2 == 0)
        for (int64_t h = 0; h < output.size(2); ++h) there.push_back(h / (output.size(2) / 2));
      else
        return {};
      for (int64_t j = 0; j < width; j += std::max<int64_t>(1, width / kColumnsTried)) {
        const auto columns = made_of(node.input.select(dim, j), output, cut ? cut->channels : 2);
        for (const int64_t column : columns)
          if (there[static_cast<size_t>(column)] != here[static_cast<size_t>(j)])
            return fmt::format(
                "{} has {}: input {} of {}, which has {}, is made of its {} {}, and they are left to different ranks{}",
                cut ? maker.name : name_of(p), cut ? split_text(maker) : "attention's heads", j, node.name,
                split_text(node), cut ? "outputs" : "heads", fmt::join(columns, " and "),
                cut ? right_columns(maker, columns, j) : "");
      }
    }
    return {};
  }

  // A fused map of several parts that are combined number by number.
  static std::string right_columns(const FlowNode& maker, const Columns& columns, int64_t input) {
    if (columns.empty() || *columns.begin() != input) return {};
    std::vector<int64_t> parts;
    for (auto it = columns.begin(); it != columns.end(); ++it) {
      const auto next = std::next(it);
      parts.push_back((next == columns.end() ? maker.outputs[0].size(channels_of(maker)) + input : *next) - *it);
    }
    return "; expected Split::columns(" + list(parts) + ")";
  }

  const std::vector<FlowNode>& flow_;
  std::vector<bool> cut_;  // along the flow: a rank has its share of what the call makes
  std::vector<std::pair<Tensor, unsigned>> hooks_;
  mutable const at::TensorImpl* probed_ = nullptr;  // the output that made_of asks about
};

}  // namespace

std::string wrong_split(const std::vector<FlowNode>& flow) { return SplitTest(flow).run(); }

}  // namespace ditto::testing
