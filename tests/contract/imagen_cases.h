// The option sets that Imagen's UNets are tested with.
#pragma once

#include <algorithm>

#include "tests/contract/contract.h"

namespace ditto::contract {

// Two levels of 64 channels, of which a norm's groups have two. `options`: of these and the plugin's own.
inline ModelCase imagen_case(testing::OptionValues options, bool has_low) {
  const auto is_on = [&](const char* name, bool otherwise) {
    const auto it = options.find(name);
    return it == options.end() ? otherwise : std::get<bool>(it->second);
  };
  const auto is = [&](const char* name, const char* value) {
    const auto it = options.find(name);
    return it != options.end() && std::get<std::string>(it->second) == value;
  };
  auto needs = testing::model_needs({3, 8, 4}, 3, 0, 64);
  if (has_low) needs.inputs.push_back({"low", at::kFloat, {3, 4, 2}, "a smaller picture"});
  if (is_on("noise_cond_aug", false)) needs.inputs.push_back({"low_t", at::kFloat, {}, "the time of its noise"});
  options.merge(testing::OptionValues{{"embed_dim", number(64)},
                                      {"channel_mult", std::vector<int64_t>{1, 1}},
                                      {"per_head_channels", number(32)},
                                      {"token_length", number(7)}});
  testing::ModelChecks checks;
  // A picture is no condition, and a dropped text keeps its mask; equal samples drop alike.
  checks.adjust = [](Batch& in) {
    std::fill(in.ids.begin(), in.ids.end(), 0);
    for (const char* name : {"low", "low_t", "text_mask"})
      if (in.has(name)) in[name] = in.at(name).slice(0, 0, 1).expand_as(in.at(name)).contiguous();
  };
  if (!is("feature_pooling_type", "mean")) checks.without_gradient = {"text.pool.bias"};  // before a softmax
  return {options, needs, checks};
}

inline std::vector<ModelCase> imagen_cases() {
  const auto of = [](testing::OptionValues more, bool has_low = false) {
    more.merge(testing::OptionValues{{"num_res_blocks", std::vector<int64_t>{1}},
                                     {"attention_resolutions", std::vector<int64_t>{4}},
                                     {"cond_dim", number(64)}});
    if (has_low) more["low_res_cond"] = true;
    return imagen_case(std::move(more), has_low);
  };
  return {
      of({{"use_null_token", true}, {"noise_cond_aug", true}, {"dropout", OptionValue(0.1)}}, true),
      of({{"attention_type", text("stacked")},
          {"feature_pooling_type", text("mean")},
          {"learned_sinu_pos_emb_dim", number(0)},
          {"scale_shift_norm", false},
          {"resblock_updown", true}}),
      of({{"attention_type", text("cross")}, {"resample_with_conv", false}, {"per_head_channels", number(-1)}}, true),
      of({{"attention_type", text("self")}})};
}

inline std::vector<ModelCase> imagen_efficient_cases() {
  const auto of = [](testing::OptionValues more) {
    more.merge(testing::OptionValues{{"num_resblocks", std::vector<int64_t>{1, 1}},
                                     {"atnn_enabled_at", std::vector<int64_t>{1, 1}}});
    return imagen_case(std::move(more), true);
  };
  auto base = of({{"attention_type", text("self")}, {"low_res_cond", false}});
  return {of({{"use_null_token", true}, {"noise_cond_aug", true}, {"skip_connection_scaling", true}}),
          of({{"attention_type", text("stacked")},
              {"feature_pooling_type", text("mean")},
              {"scale_shift_norm", false},
              {"channel_mult", std::vector<int64_t>{1, 2, 1}},
              {"num_resblocks", std::vector<int64_t>{1, 2, 1}},
              {"atnn_enabled_at", std::vector<int64_t>{0, 0, 1}}}),
          of({{"attention_type", text("cross")}, {"learned_sinu_pos_emb_dim", number(0)}}), base};
}

}  // namespace ditto::contract
