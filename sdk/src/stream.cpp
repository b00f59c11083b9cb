#include <ditto/stream.h>

#include <numeric>

#include <torch/types.h>

#include <ditto/error.h>

namespace ditto {

std::shared_ptr<const Packing> packing_of(std::vector<int64_t> lengths, torch::Device device, std::vector<Grid> grids) {
  auto sample_T = torch::repeat_interleave(torch::tensor(lengths, torch::kLong)).to(device);
  std::vector<int64_t> places;  // of each frame
  for (const auto& grid : grids)
    places.insert(places.end(), static_cast<size_t>(grid.frames), grid.rows * grid.columns);
  torch::Tensor frame_T;
  if (!grids.empty()) frame_T = torch::repeat_interleave(torch::tensor(places, torch::kLong)).to(device);
  return std::make_shared<const Packing>(
      Packing{std::move(lengths), std::move(sample_T), std::move(grids), std::move(frame_T)});
}

int64_t Sequence::tokens() const {
  if (!packing) return grid.tokens();
  return std::accumulate(packing->lengths.begin(), packing->lengths.end(), int64_t{0});
}

torch::Tensor Sequence::sample_of_token(int64_t count) const {
  if (!packing) return {};
  return packing->sample_T.narrow(0, first_token + region_offset, count);
}

torch::Tensor Sequence::frame_of_token(int64_t rows, int64_t count, torch::Device device) const {
  const int64_t first = first_token + region_offset;
  if (packing) {
    if (packing->frame_T.defined()) return packing->frame_T.narrow(0, first, count);
    throw Error(ErrorKind::shape, "conditioning of frames", "is for a pack that does not say its samples' grids",
                "set Packing::grids, by packing_of");
  }
  const auto options = torch::TensorOptions(torch::kLong).device(device);
  const auto frame_T = torch::arange(first, first + count, options).div(grid.rows * grid.columns, "floor");
  return (torch::arange(rows, options).unsqueeze(1) * grid.frames + frame_T).flatten();
}

std::vector<Field> Stream::fields() {
  std::vector<Field> list;
  const auto put = [&](std::string name, torch::Tensor& tensor, int64_t token_dim, Role role, Sequence* sequence) {
    if (tensor.defined()) list.push_back({std::move(name), &tensor, token_dim, role, sequence});
  };
  put("x", x_BTD, 1, Role::evolving, this);
  for (size_t i = 0; i < skips_BTD.size(); ++i) put("skip." + std::to_string(i), skips_BTD[i], 1, Role::evolving, this);
  put("cond", condition.cond_BD, -1, Role::carried, this);
  put("text", condition.text_BSE, -1, Role::carried, this);
  put("text_mask", condition.text_mask_BS, -1, Role::carried, this);
  if (rotary_TK.defined()) put("rotary", rotary_TK, rotary_TK.dim() - 2, Role::constant, this);
  for (auto& [name, field] : extra)
    put("extra." + name, field.tensor, field.token_dim, field.role, field.own ? &*field.own : this);
  for (auto& [name, loss] : auxiliary_losses) put("auxiliary." + name, loss, -1, Role::evolving, this);
  return list;
}

const Sequence& Stream::sequence(const std::string& name) const {
  if (name.empty()) return *this;
  const auto it = extra.find(name);
  if (it == extra.end() || !it->second.own)
    throw Error(ErrorKind::plugin, "sequence \"" + name + "\"",
                "is not in the stream: " +
                    std::string(it == extra.end() ? "it has no such extra" : "this extra has none of its own"),
                "set extra[\"" + name + "\"].own in tokens()");
  return *it->second.own;
}

}  // namespace ditto
