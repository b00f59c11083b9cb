#include <ditto/parallel/pack.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include <torch/types.h>

#include <ditto/error.h>

namespace ditto {

using torch::Tensor;

namespace {

constexpr const char* kRemedy = "correct the model's tokens(), or learn from samples of one size";

// [B, T, …] -> [1, B * T, …].
Tensor as_row(const Tensor& x) { return x.flatten(0, 1).unsqueeze(0); }

Tensor padded_to(const Tensor& x, int64_t length) {
  if (x.size(1) == length) return x;
  std::vector<int64_t> pad(static_cast<size_t>(2 * (x.dim() - 1)), 0);  // from the last dim to dim 1
  pad.back() = length - x.size(1);
  return torch::constant_pad_nd(x, pad);
}

class Packer {
 public:
  Packer(std::vector<Stream>& parts, std::vector<int64_t> samples) : parts_(parts), samples_(std::move(samples)) {}

  // The field that `of` names in every part, as `form(part's tensor, part's samples)`, put together along `dim`.
  template <class Of, class FormOf>
  Tensor together(const std::string& name, int64_t dim, const Of& of, const FormOf& form) {
    std::vector<Tensor> pieces;
    for (size_t i = 0; i < parts_.size(); ++i)
      if (const Tensor* piece = of(parts_[i]); piece && piece->defined()) pieces.push_back(form(*piece, samples_[i]));
    if (pieces.empty()) return {};
    if (pieces.size() != parts_.size())
      throw Error(ErrorKind::plugin, "stream field \"" + name + "\"", "is there for some sizes and not for others",
                  kRemedy);
    return torch::cat(pieces, dim);
  }
  template <class Of>
  Tensor tokens(const std::string& name, const Of& of) {
    return together(name, 1, of, [](const Tensor& x, int64_t) { return as_row(x); });
  }
  template <class Of>
  Tensor table(const std::string& name, const Of& of) {  // [T, …], the same for every sample of the part
    return together(name, 0, of, [](const Tensor& x, int64_t samples) {
      std::vector<int64_t> times(static_cast<size_t>(x.dim()), 1);
      times[0] = samples;
      return x.repeat(times);
    });
  }
  template <class Of>
  Tensor rows(const std::string& name, const Of& of) {
    return together(name, 0, of, [&](const Tensor& x, int64_t samples) {
      if (x.dim() == 0 || x.size(0) != samples)
        throw Error(ErrorKind::plugin, "stream field \"" + name + "\"",
                    "is " + c10::str(x.sizes()) + ", neither along tokens nor along the " + std::to_string(samples) +
                        " samples of its size, and cannot be packed",
                    kRemedy);
      return x;
    });
  }

  void extras(Stream& to) {
    for (const auto& part : parts_)
      for (const auto& [name, field] : part.extra) {
        if (to.extra.count(name)) continue;
        const auto of = [&name = name](const Stream& s) {
          const auto at = s.extra.find(name);
          return at == s.extra.end() ? nullptr : &at->second.tensor;
        };
        const auto full = "extra." + name;
        to.extra[name] = {field.token_dim == 1   ? tokens(full, of)
                          : field.token_dim == 0 ? table(full, of)
                                                 : rows(full, of),
                          field.token_dim, field.role};
        if (field.own) to.extra[name].own = own_sequence(name);
      }
  }

  // Of sequences, each the tokens of every sample of its part.
  template <class Of>
  Sequence sequence(const Of& of, torch::Device device) const {
    std::vector<int64_t> lengths;
    std::vector<Grid> grids;
    for (size_t i = 0; i < parts_.size(); ++i) {
      const Sequence& part = of(parts_[i]);
      if (part.packing)
        throw Error(ErrorKind::plugin, "model", "packs samples itself, and a pack cannot be packed", kRemedy);
      lengths.insert(lengths.end(), static_cast<size_t>(samples_[i]), part.tokens());
      grids.insert(grids.end(), static_cast<size_t>(samples_[i]), part.grid);
    }
    Sequence whole;
    whole.packing = packing_of(std::move(lengths), device, std::move(grids));
    whole.grid = {1, 1, whole.tokens()};
    return whole;
  }

 private:
  Sequence own_sequence(const std::string& name) const {
    const auto device = parts_.front().extra.at(name).tensor.device();
    return sequence([&](const Stream& s) -> const Sequence& { return s.sequence(name); }, device);
  }

  std::vector<Stream>& parts_;
  std::vector<int64_t> samples_;
};

// The samples of one part of a pack.
struct Slice {
  int64_t row, samples, token, length;  // its first sample, their number, its first token, and the tokens of each

  Slice(const Packing& packing, const Batch& batch, size_t part) : row(0), samples(batch.parts[part].size()), token(0) {
    for (size_t i = 0; i < part; ++i) row += batch.parts[i].size();
    token = std::accumulate(packing.lengths.begin(), packing.lengths.begin() + row, int64_t{0});
    length = packing.lengths.at(static_cast<size_t>(row));
  }
  Tensor tokens(const Tensor& x) const {
    return x.defined() ? x[0].narrow(0, token, samples * length).unflatten(0, {samples, length}) : x;
  }
  Tensor table(const Tensor& x) const { return x.defined() ? x.narrow(0, token, length) : x; }
  Tensor rows(const Tensor& x) const { return x.defined() ? x.narrow(0, row, samples) : x; }
  // Of samples, or of their frames: those of all samples are one row.
  Tensor condition(const Tensor& x, const std::vector<Grid>& grids) const {
    if (!x.defined() || x.dim() != 3) return rows(x);
    const auto sum = [](int64_t frames, const Grid& grid) { return frames + grid.frames; };
    const auto first = std::accumulate(grids.begin(), grids.begin() + row, int64_t{0}, sum);
    const int64_t frames = grids.at(static_cast<size_t>(row)).frames;
    return x[0].narrow(0, first, samples * frames).unflatten(0, {samples, frames});
  }
};

std::vector<int64_t> samples_of(const Batch& batch) {
  std::vector<int64_t> samples;
  for (const auto& part : batch) samples.push_back(part.size());
  return samples;
}

}  // namespace

Stream pack(std::vector<Stream> parts) {
  std::vector<int64_t> samples;
  for (const auto& part : parts) {
    if (!part.x_BTD.defined())
      throw Error(ErrorKind::config, "batch.plan",
                  "puts samples of several sizes into one row of tokens, and this model's are maps, which have none",
                  "set batch.plan = \"buckets\", or choose a model of tokens");
    if (part.x_BTD.size(1) != part.grid.tokens())
      throw Error(ErrorKind::plugin, "model",
                  "makes " + std::to_string(part.x_BTD.size(1)) + " tokens of a sample, and a grid of " +
                      std::to_string(part.grid.tokens()),
                  kRemedy);
    samples.push_back(part.x_BTD.size(0));
  }
  Packer packer(parts, samples);
  Stream whole;
  static_cast<Sequence&>(whole) =
      packer.sequence([](const Stream& s) -> const Sequence& { return s; }, parts.front().x_BTD.device());
  whole.x_BTD = packer.tokens("x", [](const Stream& s) { return &s.x_BTD; });
  for (size_t k = 0; k < parts.front().skips_BTD.size(); ++k)
    whole.skips_BTD.push_back(packer.tokens("skip." + std::to_string(k), [k](const Stream& s) {
      return k < s.skips_BTD.size() ? &s.skips_BTD[k] : nullptr;
    }));
  whole.rotary_TK = packer.table("rotary", [](const Stream& s) { return &s.rotary_TK; });
  packer.extras(whole);
  for (const auto& [name, loss] : parts.front().auxiliary_losses)
    whole.auxiliary_losses[name] = packer.rows("auxiliary." + name, [&name = name](const Stream& s) {
      const auto at = s.auxiliary_losses.find(name);
      return at == s.auxiliary_losses.end() ? nullptr : &at->second;
    });
  return whole;
}

Conditioning pack(std::vector<Conditioning> parts, const Batch& batch) {
  int64_t longest = 0, shortest = std::numeric_limits<int64_t>::max();
  bool masked = false;
  std::vector<int64_t> lengths;
  for (auto& c : parts) {
    if (!c.text_BSE.defined()) continue;
    if (c.text_lengths.empty()) c.text_lengths.assign(static_cast<size_t>(c.text_BSE.size(0)), c.text_BSE.size(1));
    lengths.insert(lengths.end(), c.text_lengths.begin(), c.text_lengths.end());
    longest = std::max(longest, c.text_BSE.size(1)), shortest = std::min(shortest, c.text_BSE.size(1));
    masked = masked || c.text_mask_BS.defined();
  }
  for (auto& c : parts) {
    if (!c.text_BSE.defined() || (!masked && shortest == longest)) continue;
    if (!c.text_mask_BS.defined())
      c.text_mask_BS = torch::ones({c.text_BSE.size(0), c.text_BSE.size(1)}, c.text_BSE.options().dtype(torch::kBool));
    c.text_BSE = padded_to(c.text_BSE, longest);
    c.text_mask_BS = padded_to(c.text_mask_BS, longest);
  }
  std::vector<Stream> streams(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) streams[i].condition = std::move(parts[i]);
  Packer packer(streams, samples_of(batch));
  const auto cond = [](const Stream& s) { return &s.condition.cond_BD; };
  const auto& first = streams.front().condition.cond_BD;
  return {first.defined() && first.dim() == 3 ? packer.tokens("cond", cond) : packer.rows("cond", cond),
          packer.rows("text", [](const Stream& s) { return &s.condition.text_BSE; }),
          packer.rows("text_mask", [](const Stream& s) { return &s.condition.text_mask_BS; }), std::move(lengths)};
}

Stream pack_constants(std::vector<Stream> parts, const Batch& batch) {
  Packer packer(parts, samples_of(batch));
  Stream whole;
  whole.rotary_TK = packer.table("rotary", [](const Stream& s) { return &s.rotary_TK; });
  packer.extras(whole);
  return whole;
}

Stream part_of_pack(const Stream& packed, const Batch& batch, size_t part) {
  const Slice slice(*packed.packing, batch, part);
  Stream own;
  own.grid = packed.packing->grids[static_cast<size_t>(slice.row)];
  own.ids = batch.parts[part].ids;
  own.x_BTD = slice.tokens(packed.x_BTD);
  for (const auto& skip : packed.skips_BTD) own.skips_BTD.push_back(slice.tokens(skip));
  own.condition = {slice.condition(packed.condition.cond_BD, packed.packing->grids),
                   slice.rows(packed.condition.text_BSE), slice.rows(packed.condition.text_mask_BS)};
  if (const auto& all = packed.condition.text_lengths; !all.empty())
    own.condition.text_lengths.assign(all.begin() + slice.row, all.begin() + slice.row + slice.samples);
  for (const auto& [name, field] : packed.extra) {
    if (field.role == Role::constant) continue;  // where tokens were cut, a slice of them all: it is made again
    const Slice along = field.own ? Slice(*field.own->packing, batch, part) : slice;
    auto& to = own.extra[name] = {field.token_dim == 1   ? along.tokens(field.tensor)
                                  : field.token_dim == 0 ? along.table(field.tensor)
                                                         : along.rows(field.tensor),
                                  field.token_dim, field.role};
    if (!field.own) continue;
    to.own.emplace();
    to.own->grid = field.own->packing->grids[static_cast<size_t>(along.row)];
  }
  for (const auto& [name, loss] : packed.auxiliary_losses) own.auxiliary_losses[name] = slice.rows(loss);
  return own;
}

}  // namespace ditto
