#include <ditto/stream.h>

namespace ditto {

std::vector<Field> Stream::fields() {
  std::vector<Field> list;
  const auto put = [&](std::string name, torch::Tensor& tensor, int64_t token_dim, Role role) {
    if (tensor.defined()) list.push_back({std::move(name), &tensor, token_dim, role});
  };
  put("x", x_BTD, 1, Role::evolving);
  for (size_t i = 0; i < skips_BTD.size(); ++i) put("skip." + std::to_string(i), skips_BTD[i], 1, Role::evolving);
  put("cond", condition.cond_BD, -1, Role::carried);
  put("text", condition.text_BSE, -1, Role::carried);
  put("text_mask", condition.text_mask_BS, -1, Role::carried);
  put("rotary", rotary_TK, 0, Role::constant);
  for (auto& [name, field] : extra) put("extra." + name, field.tensor, field.token_dim, field.role);
  for (auto& [name, loss] : auxiliary_losses) put("auxiliary." + name, loss, -1, Role::evolving);
  return list;
}

torch::Tensor Stream::sample_of_token() const {
  if (!packing) return {};
  return packing->sample_T.narrow(0, first_token + region_offset, x_BTD.size(1));
}

}  // namespace ditto
