// Tensor parallelism: every Linear cut as its Split says (M. Shoeybi et al., 2019, arXiv:1909.08053), under the rule of
// transposition: `rows` is followed by an all-reduce both ways, and nothing stands before `columns`.
#include <numeric>

#include <torch/torch.h>

#include <ditto/error.h>
#include <ditto/parallel.h>

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

// What a rank's piece of a layer must be made of whole units of.
struct Pieces {
  std::vector<int64_t> counts;
  std::string of;  // "attention heads"
};

Pieces units_of(const LinearModule& linear) {
  const Split& split = linear.split;
  if (split.kind == Split::Kind::rows) return {{linear.weight.leaf().size(1)}, "inputs"};
  if (split.head_width == 0) return {split.parts, "outputs"};
  Pieces heads{split.parts, "attention heads of width " + std::to_string(split.head_width)};
  for (int64_t& count : heads.counts) count /= split.head_width;
  return heads;
}

std::string layer_of(const LayoutEntry& entry) { return entry.name.substr(0, entry.name.rfind('.')); }

// What the layers of a layout can be cut into, at most.
int64_t common_count(const Layout& layout) {
  int64_t common = 0;
  for (const auto& entry : layout.entries)
    if (entry.linear && !entry.is_bias && entry.linear->split.kind != Split::Kind::none)
      for (const int64_t count : units_of(*entry.linear).counts) common = std::gcd(common, count);
  return common;
}

class TensorParallel final : public ParallelStrategy {
 public:
  using Options = NoOptions;
  TensorParallel(const Options&, const Needs& needs) : group_(needs.mesh->group(Axis::tensor)) {}

  std::optional<Axis> axis() const override { return Axis::tensor; }

  void shard(Layout& layout) override {
    for (const auto& entry : layout.entries)
      if (is_cut(entry) && !entry.is_bias) check(entry, layout);
    for (auto& entry : layout.entries) {
      if (!is_cut(entry)) continue;
      if (!entry.is_bias) set_exchanges(*entry.linear);
      cut_entry(entry);
    }
  }

 private:
  static bool is_cut(const LayoutEntry& entry) { return entry.linear && entry.linear->split.kind != Split::Kind::none; }

  void check(const LayoutEntry& entry, const Layout& layout) const {
    const auto units = units_of(*entry.linear);
    for (const int64_t count : units.counts)
      if (count % group_.size() != 0)
        throw Error(ErrorKind::config, "parallel.tensor",
                    std::to_string(group_.size()) + " does not divide the " + std::to_string(count) + " " + units.of +
                        " of \"" + layer_of(entry) + "\"",
                    "for this model use " + divisors(common_count(layout)));
  }

  void cut_entry(LayoutEntry& entry) const {
    const Split& split = entry.linear->split;
    const bool rows = split.kind == Split::Kind::rows;
    if (rows && entry.is_bias) return;  // added once, after the sum
    Cut piece{rows ? 1 : 0, rows ? std::vector<int64_t>{entry.full_shape[1]} : split.parts, group_.rank(),
              group_.size()};
    entry.tensor.set_data(cut(entry.tensor, piece));
    entry.cuts[Axis::tensor] = std::move(piece);
  }

  void set_exchanges(LinearModule& linear) const {
    const Group* group = &group_;
    if (linear.split.kind == Split::Kind::rows)
      linear.after = [group](const Tensor& y) { return transposed::all_reduce(y, *group); };
    else if (linear.split.gather)
      linear.after = [group, parts = linear.split.parts](const Tensor& y) { return gather(y, parts, *group); };
  }

  // The ranks' pieces of the outputs, each with its share of every part, as whole parts.
  static Tensor gather(const Tensor& y, const std::vector<int64_t>& parts, const Group& group) {
    const Tensor all = transposed::all_gather(y, group, -1);  // rank by rank
    if (parts.size() == 1) return all;
    std::vector<int64_t> lengths;
    for (int rank = 0; rank < group.size(); ++rank)
      for (const int64_t part : parts) lengths.push_back(part / group.size());
    const auto pieces = all.split_with_sizes(lengths, -1);
    std::vector<Tensor> ordered;
    for (size_t part = 0; part < parts.size(); ++part)
      for (int rank = 0; rank < group.size(); ++rank) ordered.push_back(pieces[rank * parts.size() + part]);
    return torch::cat(ordered, -1);
  }

  const Group& group_;
};

}  // namespace
}  // namespace ditto

DITTO_PLUGIN(ParallelStrategy, ditto::TensorParallel, "tensor", "1.0.0", "Apache-2.0",
             "matrices cut by columns, rows and heads")
