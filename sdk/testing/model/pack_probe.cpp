#include "model/pack_probe.h"

#include <exception>

#include <torch/types.h>

#include <ditto/parallel/pack.h>

#include "model/model_run.h"
#include "numbers.h"

namespace ditto::testing {

namespace {

constexpr double kRounding = 1e-9;  // in fp64, where only the order of sums may differ

bool evolves(const Field& field) { return field.token_dim >= 0 && field.role == Role::evolving; }

// The first evolving field with tokens that differs; of two streams of one sample.
std::string first_difference(Stream found, Stream expected) {
  const auto a = found.fields(), b = expected.fields();
  if (a.size() != b.size()) return "another number of fields";
  for (size_t i = 0; i < a.size(); ++i)
    if (evolves(a[i]) && !difference(*a[i].tensor, *b[i].tensor, kRounding).empty()) return a[i].name;
  return {};
}

std::string of_block(int64_t block, const std::string& field) {
  return "block " + std::to_string(block) + " makes \"" + field + "\"";
}

// Constants are left out where a sample is taken out of a pack.
Stream of_sample(const Stream& pack, const Batch& batch, size_t sample) { return part_of_pack(pack, batch, sample); }
Stream without_constants(Stream stream) {
  std::erase_if(stream.extra, [](const auto& item) { return item.second.role == Role::constant; });
  stream.rotary_TK = torch::Tensor();
  return stream;
}

// All tokens of other samples than the first are others.
Stream with_others_changed(Stream pack) {
  for (const Field& field : pack.fields()) {
    if (!evolves(field)) continue;
    const int64_t own = field.sequence->packing->lengths.at(0), dim = field.token_dim;
    *field.tensor = field.tensor->clone();
    auto others = field.tensor->narrow(dim, own, field.tensor->size(dim) - own);
    others.add_(normal("change of " + field.name, others.sizes().vec()));
  }
  return pack;
}

}  // namespace

Batch packed(const Batch& batch) {
  std::vector<Batch> samples;
  for (int64_t i = 0; i < batch.size(); ++i) samples.push_back(batch.slice(i, i + 1));
  return Batch::of_parts(std::move(samples));
}

std::string mistaken_pack(Model& model, const Batch& batch, Context& ctx) {
  torch::NoGradGuard no_grad;
  ctx.phase = Phase::evaluate;
  const auto pair = packed(batch.slice(0, 2));
  Stream pack = begin(model, pair, ctx);
  std::vector<Stream> alone;
  for (const auto& sample : pair) alone.push_back(begin(model, sample, ctx));
  for (int64_t i = 0; i < model.depth(); ++i) {
    const std::string kept_apart = ": keep a pack's samples apart by the stream's packing, or use ctx.attention";
    const std::string found = "a pack taken for one sample: ";
    const std::string remedy =
        ": give ctx.ops the stream, or take of each token the row stream.sample_of_token(…) of the conditioning; grids "
        "are the packing's, and positions are added in tokens() or set in constants()";
    Stream left;
    try {
      const Stream other = model.run_block(i, with_others_changed(pack), ctx);
      left = model.run_block(i, pack, ctx);
      const auto seen = first_difference(of_sample(other, pair, 0), of_sample(left, pair, 0));
      if (!seen.empty())
        return "samples of a pack that see one another: " + of_block(i, seen) +
               " of other samples' tokens too (a mean, or a norm, over all tokens of the row)" + kept_apart;
    } catch (const std::exception& error) {
      return found + "block " + std::to_string(i) + " cannot run on it (" + first_line(error) + ")" + remedy;
    }
    for (size_t sample = 0; sample < alone.size(); ++sample) {
      alone[sample] = model.run_block(i, alone[sample], ctx);
      const auto differs = first_difference(of_sample(left, pair, sample), without_constants(alone[sample]));
      if (!differs.empty()) return found + of_block(i, differs) + " otherwise than of its samples one by one" + remedy;
    }
    pack = std::move(left);
  }
  return {};
}

}  // namespace ditto::testing
