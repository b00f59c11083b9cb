// Expert parallelism: what a layer declares along the axis (the experts of a layer of them) dealt out, tokens sent to
// them and their results brought back, by all-to-all (D. Lepikhin et al., 2020, arXiv:2006.16668). Ranks along the axis
// have micro-batches of their own. No token is dropped, and none is padded.
#include <algorithm>
#include <numeric>
#include <set>

#include <torch/autograd.h>
#include <torch/types.h>

#include <ditto/error.h>
#include <ditto/parallel/strategy.h>

namespace ditto {
namespace {

using torch::Tensor;
using Counts = std::vector<int64_t>;

int64_t sum(const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

std::string divisors(int64_t count) {
  std::string text;
  for (int64_t degree = 1; degree <= count; ++degree)
    if (count % degree == 0) text += (text.empty() ? "" : ", ") + std::to_string(degree);
  return text;
}

// Rows that `table` counts by rank and, for each, by expert: how many are whose.
struct Arrival {
  Counts of_rank, of_expert;
  Tensor by_expert, by_rank;  // the rows' order by expert and, of one expert, by rank; and the way back

  Arrival(const Counts& table, int64_t ranks, const torch::Device& device) {
    const auto experts = static_cast<int64_t>(table.size()) / ranks;
    const auto count = [&](int64_t rank, int64_t expert) {
      return table[static_cast<size_t>(rank * experts + expert)];
    };
    Counts starts;  // along the table, which is how the rows come
    std::exclusive_scan(table.begin(), table.end(), std::back_inserter(starts), int64_t{0});
    of_rank.resize(static_cast<size_t>(ranks));
    of_expert.resize(static_cast<size_t>(experts));
    Tensors runs;
    for (int64_t expert = 0; expert < experts; ++expert)
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const int64_t rows = count(rank, expert), start = starts[static_cast<size_t>(rank * experts + expert)];
        of_rank[static_cast<size_t>(rank)] += rows;
        of_expert[static_cast<size_t>(expert)] += rows;
        runs.push_back(torch::arange(start, start + rows, torch::kLong));
      }
    const auto order = torch::cat(runs);
    by_expert = order.to(device);
    by_rank = torch::argsort(order).to(device);
  }
};

// Rows in another order. The gradient goes back by the inverse: of index_select it would be a sum, with zeros.
struct Permuted : torch::autograd::Function<Permuted> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x, const Tensor& order,
                        const Tensor& inverse) {
    ctx->save_for_backward({inverse});
    return x.index_select(0, order);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grad) {
    return {grad[0].index_select(0, ctx->get_saved_variables()[0]), Tensor(), Tensor()};
  }
};

class ExpertParallel final : public ParallelStrategy {
 public:
  using Options = NoOptions;
  ExpertParallel(const Options&, const Needs& needs)
      : mesh_(*needs.mesh), group_(mesh_.group(Axis::expert)), is_exact_(needs.token_leaf > 0) {}

  std::optional<Axis> axis() const override { return Axis::expert; }
  bool exact() const override { return true; }

  // Of all the model: a stage of a pipeline may have no experts, where another has.
  void claim(Layout& layout) override {
    refuse_without_experts(layout);
    for (const auto& entry : layout.entries) check(entry);
  }

  void shard(Layout& layout) override {
    for (auto& entry : layout.entries) {
      const auto* declared = entry.declared(Axis::expert);
      if (!declared) continue;
      Cut piece{declared->dim, declared->parts, group_.rank(), group_.size()};
      entry.tensor.set_data(cut(entry.tensor, piece));
      entry.cuts[Axis::expert] = std::move(piece);
      entry.layer->dispatch = [this](const Tensor& x_RD, const Counts& counts, const CutLayer::Rows& run) {
        return dispatch(x_RD, counts, run);
      };
      entry.layer->dispatch_numbers = [this](const Tensor& number_R, const Counts& counts, int64_t stride) {
        return dispatch_numbers(number_R, counts, stride);
      };
    }
  }

  // Every forward and backward exchanges rows.
  bool in_step() const override { return true; }

 private:
  void refuse_without_experts(const Layout& layout) const {
    if (std::none_of(layout.entries.begin(), layout.entries.end(),
                     [](const LayoutEntry& entry) { return entry.declared(Axis::expert) != nullptr; }))
      throw Error(ErrorKind::config, "parallel.expert",
                  "= " + std::to_string(group_.size()) + ", but the model has no experts",
                  "set parallel.expert = 1, or choose a model with experts");
  }

  void check(const LayoutEntry& entry) const {
    const auto* piece = entry.declared(Axis::expert);
    if (!piece) return;
    for (const int64_t part : piece->parts)
      if (const int64_t count = part / piece->unit; count % group_.size() != 0)
        throw Error(ErrorKind::config, "parallel.expert",
                    std::to_string(group_.size()) + " does not divide the " + std::to_string(count) + " " +
                        entry.layer->cut(Axis::expert)->units + " of \"" + entry.layer_name() + "\"",
                    "for this layer use one of " + divisors(count));
  }

  // Rows go to the ranks of their experts, and results come back to where they were.
  Tensor dispatch(const Tensor& x_RD, const Counts& counts, const CutLayer::Rows& run) const {
    const auto send = rows_of_ranks(counts);
    const Arrival arrival(exchange_counts(counts, x_RD.device()), group_.size(), x_RD.device());
    const auto arrived = transposed::exchange(x_RD, group_, send, arrival.of_rank);
    const auto done = run(in_order(arrived, arrival.by_expert, arrival.by_rank), arrival.of_expert);
    return transposed::exchange(in_order(done, arrival.by_rank, arrival.by_expert), group_, arrival.of_rank, send);
  }

  Tensor dispatch_numbers(const Tensor& number_R, const Counts& counts, int64_t stride) const {
    const Arrival arrival(exchange_counts(counts, number_R.device()), group_.size(), number_R.device());
    const auto mine = (number_R + group_.rank() * stride).contiguous();
    const auto arrived = group_.begin_exchange(mine, rows_of_ranks(counts), arrival.of_rank, "exchange_counts")();
    return arrived.index_select(0, arrival.by_expert);
  }

  Tensor in_order(const Tensor& rows, const Tensor& order, const Tensor& inverse) const {
    return is_exact_ ? Permuted::apply(rows, order, inverse) : rows.index_select(0, order);
  }

  // How many rows go to each rank.
  Counts rows_of_ranks(const Counts& counts) const {
    const int64_t experts = static_cast<int64_t>(counts.size()) / group_.size();
    Counts send;
    for (auto at = counts.begin(); at != counts.end(); at += experts) send.push_back(sum({at, at + experts}));
    return send;
  }

  // How many rows each rank sends to each of the experts that are here.
  Counts exchange_counts(const Counts& counts, const torch::Device& device) const {
    const Counts even(static_cast<size_t>(group_.size()), static_cast<int64_t>(counts.size()) / group_.size());
    const auto mine = torch::tensor(counts, torch::kLong).to(device.is_meta() ? torch::Device(torch::kCPU) : device);
    const auto table = group_.begin_exchange(mine, even, even, "exchange_counts")().cpu();
    return {table.data_ptr<int64_t>(), table.data_ptr<int64_t>() + table.numel()};
  }

  const Mesh& mesh_;
  const Group& group_;
  const bool is_exact_;  // run.numerics = "one"
};

}  // namespace
}  // namespace ditto

DITTO_PLUGIN(ParallelStrategy, ditto::ExpertParallel, "expert", "1.0.0", "Apache-2.0",
             "experts dealt out; tokens sent to them and back")
