#include <ditto/parallel/token_route.h>

#include <algorithm>
#include <array>
#include <cmath>

#include <torch/autograd.h>
#include <torch/types.h>

#include <ditto/error.h>

namespace ditto {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

// Names among the stream's extras: of what waits for the end of the route, and of whole tables.
constexpr const char *kAround = "around.", *kWhole = "whole.", *kAroundSkip = "around.skip.";
// Keeps tokens as a model's dropout keeps numbers: of those it is the one with this name (FNV-1a of "tread").
constexpr std::uint32_t kSeries = 0x131adf17u;

// Rows of x [B, T, …], seen as [B T, …]. The library's own gradient would add rows up, one to each.
struct TakeRows : torch::autograd::Function<TakeRows> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& rows, int64_t samples) {
    ctx->save_for_backward({rows});
    ctx->saved_data["sizes"] = x.sizes().vec();
    return x.flatten(0, 1).index_select(0, rows).unflatten(0, {samples, -1});
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradient) {
    const auto sizes = ctx->saved_data["sizes"].toIntVector();
    const auto zeros = torch::zeros(sizes, gradient[0].options()).flatten(0, 1);
    const auto all = zeros.index_put({ctx->get_saved_variables()[0]}, gradient[0].flatten(0, 1));
    return {all.unflatten(0, {sizes[0], sizes[1]}), Tensor(), Tensor()};
  }
};

// Of a whole sequence: which of its rows, all samples' tokens one after another, are kept.
struct Kept {
  Tensor rows;                   // int64
  std::vector<int64_t> lengths;  // of each sample
};

Kept kept_of(const Sequence& whole, const std::vector<int64_t>& ids, const TokenRouter& router) {
  const auto lengths = whole.packing ? whole.packing->lengths : std::vector<int64_t>(ids.size(), whole.tokens());
  if (lengths.size() != ids.size() || ids.empty())
    throw Error(
        ErrorKind::shape, "tread",
        "finds " + std::to_string(ids.size()) + " sample ids for " + std::to_string(lengths.size()) + " samples",
        "draws are made by the batch's ids: give it one for each sample");
  Kept kept;
  std::vector<Tensor> rows;
  int64_t start = 0;
  for (size_t i = 0; i < ids.size(); start += lengths[i++]) {
    rows.push_back(router.kept(ids[i], lengths[i]) + start);
    kept.lengths.push_back(rows.back().size(0));
  }
  kept.rows = torch::cat(rows);
  return kept;
}

[[noreturn]] void refuse(const std::string& what, const std::string& remedy) {
  throw Error(ErrorKind::config, "tread", what, remedy);
}

[[noreturn]] void refuse_field(const std::string& name) {
  refuse(
      "stream field \"" + name +
          "\" has a row for each token and none for each sample: what a sample's kept tokens "
          "are given of it cannot be told",
      "leave [tread] out for this model; in your own, give it dims [B, T, ...], or turn queries and keys by rotary_TK");
}

// The tokens' dims of a field of evolving tokens, or of a constant of each sample's.
bool has_samples(const Field& field) { return field.token_dim == 1 && field.tensor->dim() >= 2; }

// No join restores what a split has cut of them.
void restore_constants(Stream& stream) {
  for (const auto& field : stream.fields()) {
    if (field.role != Role::constant || field.token_dim < 0) continue;
    const auto it = stream.extra.find(kWhole + field.name);
    if (it == stream.extra.end())
      throw Error(ErrorKind::plugin, "stream field \"" + field.name + "\"", "came after the blocks had begun",
                  "set constants in constants()");
    *field.tensor = it->second.tensor;
  }
}

}  // namespace

Tensor TokenRouter::kept(int64_t id, int64_t tokens) const {
  const auto around = static_cast<int64_t>(std::floor(route_.ratio * static_cast<double>(tokens)));
  const auto score_T = random_.uniform(Purpose::model_dropout, std::array{id}, {tokens}, torch::kDouble, kSeries)[0];
  const auto order = torch::argsort(score_T, /*stable=*/true, 0);
  return std::get<0>(order.narrow(0, 0, tokens - std::min(around, tokens - 1)).sort(0));
}

void TokenRouter::remember_constants(Stream& stream) {
  for (const auto& field : stream.fields())
    if (field.role == Role::constant && field.token_dim >= 0)
      stream.extra[kWhole + field.name] = {*field.tensor, -1, Role::constant};
}

void TokenRouter::enter(Stream& stream, const std::vector<std::string>& others) const {
  restore_constants(stream);
  const auto& cond = stream.condition.cond_BD;
  if (cond.defined() && cond.dim() == 3)
    refuse("takes tokens out of their frames, and this batch has a time for each frame",
           "leave [tread] out, or train with one time for each sample");
  const Sequence whole = stream;
  const Kept kept = kept_of(whole, stream.ids, *this);
  const auto samples = whole.packing ? int64_t{1} : static_cast<int64_t>(stream.ids.size());
  for (const auto& field : stream.fields()) {
    if (field.token_dim < 0 || field.sequence != &stream) continue;
    if (std::find(others.begin(), others.end(), field.name) != others.end()) {
      stream.extra.at(field.name.substr(std::string("extra.").size())).own = whole;
      continue;
    }
    const auto rows = kept.rows.to(field.tensor->device());
    if (has_samples(field)) {
      if (field.role == Role::evolving) stream.extra[kAround + field.name] = {*field.tensor, 1, Role::evolving, whole};
      *field.tensor = TakeRows::apply(*field.tensor, rows, samples);
      continue;
    }
    if (field.role == Role::evolving || field.token_dim != 0 || (field.name != "rotary" && !whole.packing))
      refuse_field(field.name);
    if (whole.packing) {
      *field.tensor = field.tensor->index_select(0, rows);
      continue;
    }
    // One table for all samples becomes each sample's own.
    const auto places = rows.remainder(whole.tokens());
    *field.tensor = field.tensor->index_select(0, places).unflatten(0, {samples, -1});
  }
  const auto device = stream.x_BTD.defined() ? stream.x_BTD.device() : cond.defined() ? cond.device() : torch::kCPU;
  stream.grid = {1, 1, whole.packing ? kept.rows.size(0) : kept.lengths.front()};
  if (whole.packing) stream.packing = packing_of(kept.lengths, device);
}

void TokenRouter::leave(Stream& stream) const {
  restore_constants(stream);
  const Sequence whole = *whole_of(stream);
  const Kept kept = kept_of(whole, stream.ids, *this);
  static_cast<Sequence&>(stream) = whole;
  for (const auto& field : stream.fields()) {
    if (field.role != Role::evolving || field.token_dim < 0 || field.sequence != &stream) continue;
    const auto around = stream.extra.find(kAround + field.name);
    if (around == stream.extra.end() || !around->second.tensor.defined())
      refuse("\"" + field.name + "\" is made by a block that some tokens go around, and read by one that they do not",
             "let the route end where what it makes has been read: of a model with long skips, end = -start");
    const auto& before = around->second.tensor;
    const auto rows = kept.rows.to(before.device());
    *field.tensor = before.flatten(0, 1)
                        .index_put({rows}, field.tensor->flatten(0, 1))
                        .unflatten(0, {before.size(0), before.size(1)});
  }
  std::erase_if(stream.extra,
                [](const auto& one) { return one.first.starts_with(kAround) || one.first.starts_with(kWhole); });
}

const Sequence* TokenRouter::whole_of(const Stream& stream) {
  const auto it = stream.extra.find(std::string(kAround) + "x");
  return it == stream.extra.end() ? nullptr : &*it->second.own;
}

void TokenRouter::after_block(Stream& stream) {
  for (auto& [name, field] : stream.extra)
    if (name.starts_with(kAroundSkip) &&
        std::stoul(name.substr(std::string_view(kAroundSkip).size())) >= stream.skips_BTD.size())
      field.tensor = Tensor();
}

}  // namespace ditto
