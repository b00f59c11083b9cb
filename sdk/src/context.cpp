#include <ditto/context.h>

#include <algorithm>
#include <cstdint>

#include <torch/types.h>

#include <ditto/error.h>

namespace ditto {

using torch::Tensor;

namespace {

// FNV-1a: draws are keyed by it.
std::uint32_t series_of(const std::string& name) {
  std::uint32_t hash = 2166136261u;
  for (const char letter : name) hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619u;
  return hash;
}

// One row of tokens [B, T, D], or the tokens of a pack that are here, drawn sample by sample: where a number is kept.
torch::Tensor kept(const Random& random, const torch::Tensor& x_BTD, const Sequence& tokens,
                   const std::vector<int64_t>& ids, double p, std::uint32_t series) {
  const int64_t first = tokens.first_token + tokens.region_offset, here = x_BTD.size(1), width = x_BTD.size(2);
  Tensors parts;
  const auto draw = [&](int64_t id, int64_t length, int64_t begin, int64_t end) {
    parts.push_back(
        random.uniform_block(Purpose::model_dropout, id, {length, width}, {begin, 0}, {end - begin, width}, series));
  };
  if (!tokens.packing) {
    for (const int64_t id : ids) draw(id, tokens.tokens(), first, first + here);
    return torch::stack(parts).ge(p);
  }
  int64_t start = 0;
  for (size_t i = 0; i < ids.size(); start += tokens.packing->lengths[i++]) {
    const int64_t length = tokens.packing->lengths[i];
    const int64_t begin = std::max(first, start), end = std::min(first + here, start + length);
    if (begin < end) draw(ids[i], length, begin - start, end - start);
  }
  return torch::cat(parts).unsqueeze(0).ge(p);
}

[[noreturn]] void refuse_dropout(const std::string& name, const std::string& found, const std::string& remedy) {
  throw Error(ErrorKind::shape, "dropout \"" + name + "\"", found, remedy);
}

void check_rate(double p, const std::string& name) {
  if (!(p >= 0 && p < 1))
    refuse_dropout(name, "has p = " + std::to_string(p), "use a probability of at least 0 and below 1");
}

void check_ids(size_t samples, const std::vector<int64_t>& ids, const std::string& name) {
  if (ids.size() != samples)
    refuse_dropout(name,
                   "finds " + std::to_string(ids.size()) + " sample ids for " + std::to_string(samples) + " samples",
                   "draws are made by the batch's ids: give it one for each sample");
}

void check_tokens(const Tensor& x_BTD, const Stream& stream, const std::string& name, const std::string& sequence) {
  const Tensor& field = sequence.empty() ? stream.x_BTD : stream.extra.at(sequence).tensor;
  if (x_BTD.sizes() != field.sizes())
    refuse_dropout(name,
                   "is of " + c10::str(x_BTD.sizes()) + ", where the stream's tokens are " + c10::str(field.sizes()),
                   "drop whole tokens, as they are between layers: strategies cut what is inside of them");
}

Tensor dropped(const Tensor& x, const Tensor& kept, double p) {
  return x * kept.to(x.options().requires_grad(false)).div_(1 - p);
}

}  // namespace

Context::Context(std::shared_ptr<const OpTable> table, Random random_)
    : ops(*table), random(random_), attention_op(plain_attention(*table)), table_(std::move(table)) {}
Context::~Context() = default;

void Context::refuse_under_one(const std::string& what) const {
  if (token_leaf > 0)
    throw Error(ErrorKind::config, "run.numerics", "= \"one\" has no exact form of " + what,
                "set run.numerics = \"fast\", or leave it out");
}

Tensor Context::in_unit(const Unit& unit, const std::function<Tensor()>& body) {
  return unit_wrap ? unit_wrap(unit, body) : body();
}

Tensor Context::all_tokens(const Tensor& x, const Stream& stream) { return token_gather ? token_gather(x, stream) : x; }

Tensor Context::own_tokens(const Tensor& whole, const Tensor& like, const Stream& stream) {
  return whole.size(1) == like.size(1) ? whole : whole.narrow(1, stream.first_token, like.size(1));
}

Tensor Context::dropout(const Tensor& x_BTD, double p, const Stream& stream, const std::string& name,
                        const std::string& sequence) {
  const Sequence& tokens = stream.sequence(sequence);
  const auto samples = tokens.packing ? tokens.packing->lengths.size() : static_cast<size_t>(x_BTD.size(0));
  check_rate(p, name);
  check_ids(samples, stream.ids, name);
  check_tokens(x_BTD, stream, name, sequence);
  if (phase != Phase::train || p == 0 || x_BTD.is_meta()) return x_BTD;
  return dropped(x_BTD, kept(random, x_BTD, tokens, stream.ids, p, series_of(name)), p);
}

Tensor Context::dropout(const Tensor& map, double p, const std::vector<int64_t>& ids, const std::string& name,
                        const ShareHere& channels) {
  check_rate(p, name);
  if (phase != Phase::train || p == 0 || map.is_meta()) return map;
  check_ids(static_cast<size_t>(map.size(0)), ids, name);
  const auto here = map.sizes().slice(1).vec();
  auto whole = here;
  whole[0] *= channels.count;
  std::vector<int64_t> start(here.size(), 0);
  start[0] = here[0] * channels.index;
  Tensors rows;
  for (const int64_t id : ids)
    rows.push_back(random.uniform_block(Purpose::model_dropout, id, whole, start, here, series_of(name)));
  return dropped(map, torch::stack(rows).ge(p), p);
}

}  // namespace ditto
