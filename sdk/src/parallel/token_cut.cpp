// Slices of tokens, their balance, and what makes them whole.
#include <ditto/parallel/token_cut.h>

#include <algorithm>
#include <numeric>

#include <torch/types.h>

#include <ditto/error.h>

namespace ditto {

using torch::Tensor;

namespace {

int64_t sum(const std::vector<int64_t>& lengths) { return std::accumulate(lengths.begin(), lengths.end(), int64_t{0}); }

std::vector<int64_t> equal_lengths(int64_t count, int64_t ranks, int64_t multiple) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < ranks; ++i) lengths.push_back(((i + 1) * count / ranks - i * count / ranks) * multiple);
  return lengths;
}

// A token costs its sample's length. Each bound is the token nearest to its share of the costs that leaves every rank
// one.
std::vector<int64_t> balanced_lengths(const std::vector<int64_t>& samples, int64_t ranks) {
  const int64_t tokens = sum(samples);
  const int64_t total = std::inner_product(samples.begin(), samples.end(), samples.begin(), int64_t{0});
  std::vector<int64_t> bounds{0};
  int64_t start = 0, cost = 0;
  size_t sample = 0;
  for (int64_t i = 1; i < ranks; ++i) {
    while ((cost + samples[sample] * samples[sample]) * ranks < total * i) {
      cost += samples[sample] * samples[sample];
      start += samples[sample++];
    }
    const int64_t length = std::max<int64_t>(samples[sample], 1);
    const int64_t inside = (2 * (total * i - cost * ranks) + ranks * length) / (2 * ranks * length);
    bounds.push_back(std::clamp(start + inside, bounds.back() + 1, tokens - (ranks - i)));
  }
  bounds.push_back(tokens);
  std::adjacent_difference(bounds.begin(), bounds.end(), bounds.begin());
  return {bounds.begin() + 1, bounds.end()};
}

[[noreturn]] void refuse_few(int ranks, int64_t count) {
  throw Error(
      ErrorKind::config, "parallel.context",
      "cuts a sample into " + std::to_string(ranks) + " slices, but its number of tokens is " + std::to_string(count),
      "use a degree of at most " + std::to_string(count));
}

// What is cut by frames is told from what is not by its number of tokens alone (LeavesHere::of_tokens).
[[noreturn]] void refuse_own_tokens(const std::string& extra) {
  throw Error(ErrorKind::config, "run.numerics",
              "\"one\" does not go with a cut by frames of a stream whose \"" + extra + "\" has tokens of its own",
              "use context_plugin = \"ulysses\", leave parallel.context = 1, or set run.numerics = \"fast\"");
}

}  // namespace

TokenCut::TokenCut(const ParallelStrategy::Needs& needs, Unit unit)
    : group_(needs.mesh->group(Axis::context)), unit_(unit), token_leaf_(group_.size() > 1 ? needs.token_leaf : 0) {
  if (!needs.token_local)
    throw Error(ErrorKind::config, "parallel.context",
                "cuts tokens, and this model does not say that its blocks mix them through attention alone "
                "(token_local)",
                "leave parallel.context = 1, or choose another model; in your own, return true from token_local() "
                "if its blocks do");
}

bool TokenCut::by_frames(const Sequence& sequence) const {
  const auto& grid = sequence.grid;
  const int64_t ranks = group_.size();
  return unit_ == Unit::frame && !sequence.packing && grid.frames >= ranks && grid.rows * grid.columns >= ranks;
}

// Whole frames that do not end between leaves would cut a sum elsewhere than leaves do.
std::shared_ptr<const TokenLeaves> TokenCut::leaves(const Sequence& sequence) const {
  const int64_t tokens = sequence.tokens(), count = (tokens + token_leaf_ - 1) / token_leaf_;
  if (!by_frames(sequence))
    return std::make_shared<const TokenLeaves>(
        TokenLeaves{LeafShare::equal(group_, count, "parallel.context", "a sample's tokens"), token_leaf_, tokens});
  const int64_t places = sequence.grid.rows * sequence.grid.columns, ranks = group_.size();
  std::vector<LeafRun> runs;
  for (int64_t i = 0; i < ranks; ++i) {
    const int64_t begin = i * sequence.grid.frames / ranks * places,
                  end = (i + 1) * sequence.grid.frames / ranks * places;
    if (begin % token_leaf_ != 0)
      throw Error(ErrorKind::config, "parallel.context",
                  "gives frames of " + std::to_string(places) + " tokens to rank " + std::to_string(i) +
                      " from token " + std::to_string(begin) + " on, which is in the middle of a leaf of " +
                      std::to_string(token_leaf_) + " (run.numerics = \"one\")",
                  "use a run.token_leaf that divides a frame's tokens, or context_plugin = \"ulysses\"");
    runs.push_back({begin / token_leaf_, (end + token_leaf_ - 1) / token_leaf_});
  }
  return std::make_shared<const TokenLeaves>(TokenLeaves{{group_, std::move(runs)}, token_leaf_, tokens});
}

UnitRun TokenCut::wrap(UnitRun run) const {
  if (!in_leaves()) return run;
  return [this, run = std::move(run)](const ditto::Unit& unit, UnitCall& call) {
    if (unit.kind != ditto::Unit::Kind::block) return run(unit, call);
    auto& here = call.ctx.ops.leaves();
    const RestoredLeaves scope(here);
    here.inside = here.between = leaves(call.stream);
    for (const auto& [name, field] : call.stream.extra)
      if (field.own) here.of(name).inside = here.of(name).between = leaves(*field.own);
    run(unit, call);
  };
}

std::vector<int64_t> TokenCut::lengths(const Sequence& sequence) const {
  if (in_leaves()) return leaves(sequence)->lengths();
  const int ranks = group_.size();
  const auto& grid = sequence.grid;
  if (by_frames(sequence)) return equal_lengths(grid.frames, ranks, grid.rows * grid.columns);
  const int64_t tokens = sequence.tokens();
  if (tokens < ranks) refuse_few(ranks, tokens);
  return sequence.packing ? balanced_lengths(sequence.packing->lengths, ranks) : equal_lengths(tokens, ranks, 1);
}

void TokenCut::split(Stream& stream, Constants constants) const {
  for (const auto& field : stream.fields()) {
    if (field.token_dim < 0) continue;
    const auto all = lengths(*field.sequence);
    const int64_t start = std::accumulate(all.begin(), all.begin() + group_.rank(), int64_t{0});
    const int64_t tokens = sum(all), length = all[static_cast<size_t>(group_.rank())];
    if (field.tensor->size(field.token_dim) != tokens)
      throw Error(ErrorKind::shape, "stream field \"" + field.name + "\"",
                  "has " + std::to_string(field.tensor->size(field.token_dim)) + " tokens, its grid or pack " +
                      std::to_string(tokens) + ": parallel.context cannot cut it",
                  "leave parallel.context = 1 for this model");
    field.sequence->first_token = start;
    if (field.role == Role::constant && constants == Constants::whole) continue;
    if (!in_leaves()) {
      *field.tensor = field.tensor->narrow(field.token_dim, start, length).contiguous();
      continue;
    }
    if (field.sequence != &stream && unit_ == Unit::frame) refuse_own_tokens(field.name);
    *field.tensor = replicated::part(*field.tensor, group_, field.token_dim, all);
  }
}

void TokenCut::join(Stream& stream) const {
  for (const auto& field : stream.fields()) {
    if (field.token_dim < 0) continue;
    if (field.role == Role::evolving) {
      const auto all = lengths(*field.sequence);
      *field.tensor = in_leaves() ? replicated::gather(*field.tensor, group_, field.token_dim, all)
                                  : transposed::all_gather(*field.tensor, group_, field.token_dim, all);
    }
    field.sequence->first_token = 0;
  }
}

Tensor TokenCut::gather(const Tensor& x, const Stream& stream) const {
  if (in_leaves()) return replicated::gather(x, group_, 1, lengths(stream));
  return transposed::all_gather(x, group_, 1, lengths(stream));
}

void refuse_side_by_side(const Layout& layout, const std::string& option, const std::string& remedy) {
  for (const auto& entry : layout.entries)
    if (const auto* cut = entry.layer ? entry.layer->cut(Axis::tensor) : nullptr;
        cut && cut->sequence == Split::kSideBySide)
      throw Error(ErrorKind::config, option,
                  "cuts the tokens of each sequence by themselves, and \"" + entry.layer_name() +
                      "\" maps those of several side by side",
                  remedy);
}

Tensor whole_mask(const Tensor& mask_BS, const std::vector<int64_t>& lengths, const Group& group) {
  if (!mask_BS.defined()) return mask_BS;
  return group.all_gather(mask_BS.to(torch::kByte), 1, lengths).to(torch::kBool);
}

void check_places(const Layout& layout, const Group& group, const std::string& option) {
  if (group.size() == 1) return;
  for (const auto& entry : layout.entries)
    if (entry.unit.kind == Unit::Kind::block && entry.layer && !entry.layer->token_local())
      throw Error(ErrorKind::config, option,
                  "cuts a sample by places, and \"" + entry.layer_name() +
                      "\" makes each place of a map from others too (a convolution, or a norm over all of them)",
                  "leave " + option + (option == "parallel.context" ? " = 1" : " = false") +
                      " for this model; parallel.tensor cuts its channels");
}

void check_heads(const Layout& layout, const Mesh& mesh, DealtHeads which) {
  const int64_t degree = mesh.size(Axis::context), tensor = mesh.size(Axis::tensor);
  for (const auto& entry : layout.entries) {
    const auto* piece = entry.declared(Axis::tensor);
    if (!piece) continue;
    const auto& layer = *entry.layer->cut(Axis::tensor);
    if (!layer.are_heads || layer.condition) continue;
    const size_t count = which == DealtHeads::queries ? 1 : piece->parts.size();
    for (size_t i = 0; i < count; ++i) {
      const int64_t heads = piece->parts[i] / piece->unit / tensor;
      if (heads % degree == 0) continue;
      throw Error(ErrorKind::config, "parallel.context",
                  std::to_string(degree) + " does not divide the " + std::to_string(heads) + " attention heads of \"" +
                      entry.layer_name() + "\"" +
                      (tensor > 1 ? " that parallel.tensor = " + std::to_string(tensor) + " leaves" : ""),
                  "use a degree that divides them, or context_plugin = \"ring\", which cuts no heads");
    }
  }
}

}  // namespace ditto
