#include "tests/matrix/counts.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>

#include <fmt/format.h>
#include <torch/types.h>

#include "core/process/launch.h"
#include "tests/matrix/unet_forms.h"

namespace ditto::matrix {

namespace {

using Pass = Traffic::Pass;

// What the tiny models of tokens are made of, as far as ranks exchange anything for it; of the others, unet_forms.h.
struct Anatomy {
  int64_t pairs = 0;        // a block's matrices cut by columns that are followed by one cut by rows
  int64_t attentions = 0;   // self-attention sub-layers of a block
  int64_t in_time = 0;      // of these, such that attend along the frames
  int64_t all_tokens = 0;   // and such that attend to all tokens
  int64_t modulations = 0;  // outputs of a block's gathered adaLN map, in widths
  bool is_routed = false;
};
constexpr int64_t kWidth = 32, kTokens = 64, kDepth = 4;

const Anatomy& anatomy(const std::string& model) {
  static const Anatomy kNone{};
  static const std::map<std::string, Anatomy> kAll{{"dit", {2, 1, 0, 1, 6}},
                                                   {"dit_text", {3, 1, 0, 1, 9}},
                                                   {"st_dit", {5, 3, 1, 1, 12}},
                                                   {"dit_moe", {2, 1, 0, 1, 6, true}}};
  const auto found = kAll.find(model);
  return found == kAll.end() ? kNone : found->second;
}

int64_t total(const std::vector<int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
}

// The closed forms of one rank; names as in docs/layout_derivations.md.
class Forms {
 public:
  Forms(const Case& one, const Record& mine, const Record& one_rank, const Mesh& mesh)
      : one_(one),
        mine_(mine),
        one_rank_(one_rank),
        mesh_(mesh),
        p_(recipe_of(one).parallel),
        a_(anatomy(one.model)),
        unet_(unet_of(one.model)) {
    t = mesh.size(Axis::tensor), c = mesh.size(Axis::context);
    e = one.precision == "fp64" ? 8 : one.precision == "fp32" ? 4 : 2;
    wide = std::max<int64_t>(e, 4);
    b = one.batch / one.micro_batches;
    accumulations = one.micro_batches / mesh.data_ranks();
    const int64_t stages = mesh.size(Axis::pipeline), stage = mesh.index(Axis::pipeline);
    is_first = stage == 0, is_last = stage + 1 == stages;
    if (unet_) {
      std::tie(first_block_, end_block_) = blocks_here();
    } else {
      first_block_ = kDepth * stage / stages, end_block_ = kDepth * (stage + 1) / stages;
    }
    blocks = end_block_ - first_block_;
    sequence = one.layout.find("sequence=true") != std::string::npos;
    recomputes = p_.recompute == "blocks";
    again_ = {Pass::forward};
    if (recomputes) again_.push_back(Pass::recompute);
  }

  Counts all() {
    if (t > 1) tensor();
    if (c > 1) context();
    if (mesh_.size(Axis::pipeline) > 1) pipeline();
    if (mesh_.size(Axis::shard) > 1) shard();
    if (mesh_.size(Axis::expert) > 1) expert();
    if (mesh_.size(Axis::shard) == 1) ordered_sums();
    once_a_step();
    return counts_;
  }

 private:
  void add(const Group& group, const char* op, Pass pass, int64_t calls, int64_t bytes_each) {
    if (calls == 0 || group.size() == 1) return;
    auto& count = counts_[{group.label(), op, pass}];
    count.calls += calls;
    count.bytes += calls * bytes_each;
  }
  // Of a block's forward, and of the same again where blocks are recomputed.
  void add_again(const Group& group, const char* op, int64_t calls, int64_t bytes_each) {
    for (const Pass pass : again_) add(group, op, pass, calls, bytes_each);
  }

  // Dealt out by what they cost.
  std::pair<int64_t, int64_t> blocks_here() const {
    std::set<int64_t> mine;
    for (int64_t block = 0; block < std::ssize(unet_->blocks); ++block)
      if (mine_.units.count(to_text(Unit{Unit::Kind::block, block}))) mine.insert(block);
    return {*mine.begin(), *mine.rbegin() + 1};
  }

  // A residual block's output is a sum, and so are that of an attention and of an MLP. Modulations stay where they are.
  void tensor_of_maps() {
    const auto& group = mesh_.group(Axis::tensor);
    for (int64_t block = first_block_; block < end_block_; ++block)
      for (const int64_t numbers : unet_->blocks[static_cast<size_t>(block)].sums) {
        const int64_t bytes = 2 * b * numbers * e * (t - 1) / t;
        add_again(group, "all_reduce", accumulations, bytes);
        add(group, "all_reduce", Pass::backward, accumulations, bytes);
      }
  }

  void tensor() {
    if (unet_) return tensor_of_maps();
    const auto& group = mesh_.group(Axis::tensor);
    const int64_t x = b * (kTokens / c) * kWidth * e;  // of all tokens here
    const int64_t n = accumulations * blocks;
    if (sequence) {
      const int64_t part = x / t * (t - 1);
      add_again(group, "all_gather", n * a_.pairs, part);
      add_again(group, "reduce_scatter", n * a_.pairs, part);
      add(group, "all_gather", Pass::backward, n * a_.pairs, part);
      add(group, "reduce_scatter", Pass::backward, n * a_.pairs, part);
      if (is_last) join(group, part);
    } else {
      add_again(group, "all_reduce", n * a_.pairs, 2 * x * (t - 1) / t);
      add(group, "all_reduce", Pass::backward, n * a_.pairs, 2 * x * (t - 1) / t);
    }
    const auto modulation = [&](int64_t widths) { return b * widths * kWidth / t * e * (t - 1); };
    add_again(group, "all_gather", n, modulation(a_.modulations));
    add(group, "reduce_scatter", Pass::backward, n, modulation(a_.modulations));
    if (!is_last) return;
    add(group, "all_gather", Pass::forward, accumulations, modulation(2));
    add(group, "reduce_scatter", Pass::backward, accumulations, modulation(2));
  }

  void join(const Group& group, int64_t bytes) {
    add(group, "all_gather", Pass::forward, accumulations, bytes);
    add(group, "reduce_scatter", Pass::backward, accumulations, bytes);
  }

  void context() {
    const auto& group = mesh_.group(Axis::context);
    const int64_t own = b * (kTokens / c) * kWidth * e;  // of this rank's tokens, all heads
    const int64_t n = accumulations * blocks;
    if (is_last) join(group, own * (c - 1));
    const auto ring = [&](int64_t attentions) {
      const int64_t kv = 2 * own / t;
      add_again(group, "shift", n * attentions * (c - 1), kv);
      add(group, "shift", Pass::backward, n * attentions * (c - 1), kv);
      add(group, "shift", Pass::backward, n * attentions * c, kv / e * wide);
    };
    const auto trade = [&](int64_t attentions) {  // q, k and v there, the result back
      for (const int64_t tensors : {3, 1}) {
        const int64_t bytes = tensors * own / t / c * (c - 1);
        add_again(group, "all_to_all", n * attentions, bytes);
        add(group, "all_to_all", Pass::backward, n * attentions, bytes);
      }
    };
    if (p_.context_plugin == "ring") ring(a_.attentions);
    if (p_.context_plugin == "ulysses") trade(a_.attentions);
    if (p_.context_plugin == "spatiotemporal") {
      ring(a_.all_tokens);
      trade(a_.in_time);
    }
    if (p_.context_plugin != "fastseq") return;
    const int64_t units = n * a_.attentions, heads = own * c / t / c / c * (c - 1);
    add_again(group, "all_gather", units, own * (c - 1));
    add_again(group, "all_to_all", units, heads);
    add(group, "reduce_scatter", Pass::backward, units, own * (c - 1));
    add(group, "all_to_all", Pass::backward, units, heads);
  }

  // A tensor that goes from one stage to the next.
  struct Sent {
    int64_t bytes;
    bool learns;  // its gradient comes back
  };
  // Tokens and conditioning; of a UNet the map and live skips behind its block, conditioning and text.
  std::vector<Sent> border(int64_t block) const {
    const int64_t tokens = kTokens / c / (sequence ? t : 1);
    if (!unet_) return {{b * tokens * kWidth * e, true}, {b * kWidth * e, true}};
    std::vector<Sent> sent{{b * unet_->condition * e, true}, {b * unet_->text * e, unet_->text_learns}};
    if (unet_->mask > 0) sent.push_back({b * unet_->mask, false});
    for (const int64_t numbers : unet_->blocks[static_cast<size_t>(block)].border)
      sent.push_back({b * numbers * e, true});
    return sent;
  }

  void pipeline() {
    const auto& group = mesh_.group(Axis::pipeline);
    if (!is_last)
      for (const auto& [bytes, learns] : border(end_block_ - 1)) {
        add(group, "send", Pass::forward, accumulations, bytes);
        if (learns) add(group, "receive", Pass::backward, accumulations, 0);
      }
    if (!is_first)
      for (const auto& [bytes, learns] : border(first_block_ - 1)) {
        add(group, "receive", Pass::forward, accumulations, 0);
        if (learns) add(group, "send", Pass::backward, accumulations, bytes);
      }
    // What the tensors are, in whole numbers: how many, and they.
    if (!is_last) add(group, "send_header", Pass::forward, 2 * accumulations, 0);
    if (!is_first) add(group, "receive_header", Pass::forward, 2 * accumulations, 0);
  }

  void shard() {
    const auto& group = mesh_.group(Axis::shard);
    AxisSet axes{Axis::shard};
    if (mesh_.size(Axis::replicate) > 1) axes.insert(Axis::replicate);
    const auto& sums = mesh_.group(axes);
    const bool gathers = p_.shard_plugin == "fsdp";
    for (const auto& [unit, shapes] : mine_.units) {
      std::vector<int64_t> pieces;
      for (int k = 0; k < group.size(); ++k) pieces.push_back(piece(shapes, k));
      const int64_t longest = *std::max_element(pieces.begin(), pieces.end());
      const int64_t gather = longest * (group.size() - 1) * e;
      if (gathers) {
        add(group, "all_gather", Pass::forward, accumulations, gather);
        add(group, "all_gather", Pass::backward, accumulations, gather);
      } else {
        add(group, "all_gather", Pass::other, 1, gather);
      }
      const auto [mine, replicas] = own_share(pieces);
      add(sums, "reduce_scatter", p_.shard_plugin == "zero1" ? Pass::other : Pass::backward, accumulations,
          (total(pieces) - mine) * wide);
      if (replicas > 1) add(mesh_.group(Axis::replicate), "all_gather", Pass::other, 1, mine * (replicas - 1) * wide);
    }
  }
  // The numbers whose gradients this rank sums, and among how many replicas a shard is divided.
  std::pair<int64_t, int64_t> own_share(const std::vector<int64_t>& pieces) const {
    const int64_t replicas = mesh_.size(Axis::replicate), k = mesh_.index(Axis::replicate);
    const int64_t length = pieces[static_cast<size_t>(mesh_.index(Axis::shard))];
    return {length * (k + 1) / replicas - length * k / replicas, replicas};
  }
  // Numbers of a unit's parameters that the k-th rank holds: rows, of vectors by 64.
  int64_t piece(const std::vector<std::vector<int64_t>>& shapes, int64_t k) const {
    int64_t sum = 0;
    for (const auto& shape : shapes) {
      LayoutEntry entry;
      entry.full_shape = shape;
      entry.cuts[Axis::shard] = Cut{0, {shape[0]}, k, mesh_.size(Axis::shard), shape.size() == 1 ? 64 : 1};
      sum += c10::multiply_integers(local_shape(entry));
    }
    return sum;
  }

  // Copies on data ranks: a micro-batch's gradients to their owners, and the sums to all. With one micro-batch a rank
  // ddp does it in backward, bucket by bucket: a tiny model is one bucket.
  void ordered_sums() {
    for (const auto& [axes, numbers] : mine_.data_copies) {
      const auto& group = mesh_.group(axes);
      const int64_t n = group.size(), k = group.rank();
      const int64_t own = numbers * (k + 1) / n - numbers * k / n;
      const bool at_once = accumulations == 1 && axes == AxisSet{Axis::replicate} && mesh_.data_ranks() == n &&
                           mesh_.size(Axis::pipeline) == 1;
      const Pass pass = at_once ? Pass::backward : Pass::other;
      add(group, "exchange", pass, accumulations, (numbers - own) * wide);
      add(group, "all_gather", pass, 1, own * (n - 1) * wide);
    }
  }

  // Each routed row that has its expert elsewhere goes there and comes back, in forward and in backward.
  void expert() {
    const auto& group = mesh_.group(Axis::expert);
    int64_t rows = 0;
    const int64_t first_sample = (one_.steps - 1) * one_.batch;
    for (const auto& [name, picks] : one_rank_.picks)
      for (int64_t sample = 0; sample < one_.batch; ++sample)
        rows += crossing(picks[first_sample + sample], sample / b % mesh_.data_ranks(), group.size());
    const auto layers = static_cast<int64_t>(one_rank_.picks.size());
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      add(group, "exchange", pass, 2 * accumulations * layers, 0);
      counts_[{group.label(), "exchange", pass}].bytes = rows * kWidth * e;
    }
    add(group, "exchange_counts", Pass::forward, accumulations * layers, 4 / group.size() * (group.size() - 1) * 8);
  }
  // Of a sample's rows on data rank `at`: sent by this rank to an expert, or sent back by this rank as a result.
  int64_t crossing(const torch::Tensor& picks_TK, int64_t at, int64_t ranks) const {
    const auto owner = picks_TK.div(4 / ranks, "floor");
    const int64_t here = mesh_.data_rank();
    return (at == here ? owner.ne(here) : owner.eq(here)).sum().item<int64_t>();
  }

  // Norm, loss, samples that count, the wish to stop; and copies along axes that are no data axes.
  void once_a_step() {
    const auto reduce = [this](const Group& group, int64_t bytes) {
      add(group, "all_reduce", Pass::other, 1, 2 * bytes * (group.size() - 1) / group.size());
    };
    const bool routed = a_.is_routed;
    AxisSet loss(kDataAxes.begin(), kDataAxes.end());
    loss.insert(Axis::pipeline);
    reduce(mesh_.world(), 4 * one_.batch);
    reduce(mesh_.group(loss), 8 * one_.batch * (routed ? 3 : 2));
    reduce(mesh_.world(), 8);
    AxisSet norm{Axis::pipeline, Axis::expert, Axis::tensor};
    if (mesh_.size(Axis::shard) > 1) norm.insert(Axis::shard);
    reduce(mesh_.group(norm), 8);
    for (const auto& [axes, numbers] : mine_.copies) reduce(mesh_.group(axes), numbers * wide);
  }

  const Case& one_;
  const Record &mine_, &one_rank_;
  const Mesh& mesh_;
  const ParallelOptions p_;
  const Anatomy& a_;
  const Unet* unet_;  // null: a model of tokens
  int64_t first_block_ = 0, end_block_ = 0;
  int64_t t, c, e, wide, b, accumulations, blocks;
  bool is_first, is_last, sequence, recomputes;
  std::vector<Pass> again_;
  Counts counts_;
};

std::string line(const Traffic::Key& key, const Traffic::Count& count) {
  return fmt::format("{:9} {:18} {:16} {:6} calls {:10} bytes", name(key.pass), key.axes, key.op, count.calls,
                     count.bytes);
}

// A pipeline's header says what follows: its length is no matter of arithmetic. Names of losses are text.
bool has_form_in_calls_only(const Traffic::Key& key) { return key.op == "send_header"; }
bool has_no_form(const Traffic::Key& key) {
  return key.pass == Pass::other && key.op == "all_gather" && key.axes.find("pipeline") != std::string::npos;
}

}  // namespace

Counts expected_traffic(const Case& one, const Record& mine, const Record& one_rank, const Mesh& mesh) {
  return Forms(one, mine, one_rank, mesh).all();
}

std::string differences(const Counts& counted, const Counts& expected) {
  const auto at = [](const Counts& counts, const Traffic::Key& key) {
    const auto it = counts.find(key);
    return it == counts.end() ? Traffic::Count() : it->second;
  };
  std::string text;
  Counts all = counted;
  all.insert(expected.begin(), expected.end());
  for (const auto& [key, unused] : all) {
    const auto a = at(counted, key), b = at(expected, key);
    const bool same = a.calls == b.calls && (a.bytes == b.bytes || has_form_in_calls_only(key));
    if (same || has_no_form(key)) continue;
    text += fmt::format("{}counted {}, expected {} calls {} bytes", text.empty() ? "" : "; ", line(key, a), b.calls,
                        b.bytes);
  }
  return text;
}

std::string to_text(const Counts& counts) {
  std::string text;
  for (const auto& [key, count] : counts) text += "  " + line(key, count) + "\n";
  return text;
}

}  // namespace ditto::matrix
