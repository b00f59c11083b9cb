#include "core/config/option_effects.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace ditto {

const std::vector<OptionEffect>& option_effects() {
  using enum ChangeKind;
  static const std::vector<OptionEffect> kEffects{
      {"model.*", learning},
      {"objective.*", learning},
      {"scheduler.*", learning},
      {"encoder.*", learning},
      {"network.*", learning},
      {"data.*", learning},
      {"loader.shuffle", learning},
      {"loader.flip", learning},
      {"run.batch", learning},
      {"run.seed", learning},

      {"optimizer.*", course},
      {"lr_schedule.*", course},
      {"ema.*", course},
      {"run.steps", course},
      {"run.clip_norm", course},
      {"run.loss_scale", course},
      {"run.loss_scale_every", course},
      {"run.non_finite", course},
      {"run.max_skipped", course},

      {"run.threads", rounding},
      {"run.device", rounding},
      {"run.precision", rounding},
      {"run.micro_batch", rounding},
      {"run.deterministic", rounding},
      {"kernels.*", rounding},
      {"plugins.kernels", rounding},
      {"parallel.tensor", rounding},
      {"parallel.sequence", rounding},
      {"parallel.context", rounding},
      {"parallel.expert", rounding},
      {"parallel.pipeline_conditioning", rounding},
      {"parallel.replicate_plugin", rounding},
      {"parallel.tensor_plugin", rounding},
      {"parallel.context_plugin", rounding},
      {"parallel.pipeline_plugin", rounding},
      {"parallel.expert_plugin", rounding},

      {"parallel.replicate", sharing},
      {"parallel.shard", sharing},
      {"parallel.shard_plugin", sharing},
      {"parallel.prefetch", sharing},
      {"parallel.pipeline", sharing},
      {"parallel.virtual_stages", sharing},
      {"parallel.pipeline_cut", sharing},
      {"parallel.recompute", sharing},
      {"parallel.recompute_every", sharing},
      {"parallel.offload", sharing},
      {"parallel.offload_bytes", sharing},

      {"run.name", nothing},
      {"run.output", nothing},
      {"run.folder", nothing},
      {"run.init_from", nothing},
      {"run.init_weights", nothing},
      {"run.init_missing", nothing},
      {"run.init_extra", nothing},
      {"run.init_other_shape", nothing},
      {"loader.threads", nothing},
      {"loader.prefetch", nothing},
      {"loader.max_bad", nothing},
      {"loader.strict", nothing},
      {"parallel.timeout_s", nothing},
      {"parallel.hang_s", nothing},
      {"sampler.*", nothing},
      {"guidance.*", nothing},
      {"checkpoint.*", nothing},
      {"validate.*", nothing},
      {"log.*", nothing},
      {"plugins.path", nothing},  // of recipes up to 0.1.0
  };
  return kEffects;
}

const OptionEffect* effect_of(const std::string& key) {
  const OptionEffect* of_section = nullptr;
  for (const auto& row : option_effects()) {
    const std::string_view name = row.key;
    if (name == key) return &row;
    if (name.ends_with(".*") && key.starts_with(name.substr(0, name.size() - 1))) of_section = &row;
  }
  return of_section;
}

namespace {

// Which network it is the fingerprint of its weights says, not where they lie.
bool is_place_of_weights(const std::string& key) { return key.starts_with("network.") && key.ends_with(".weights"); }

}  // namespace

ChangeKind change_kind(const std::string& key) {
  if (is_place_of_weights(key)) return ChangeKind::nothing;
  const auto* row = effect_of(key);
  return row ? row->kind : ChangeKind::learning;
}

bool is_place(const std::string& key) {
  constexpr std::array<std::string_view, 5> kPlaces{"run.folder", "run.output", "run.init_from", "data.shards",
                                                    "data.validation_shards"};
  if (is_place_of_weights(key)) return true;
  return std::find(kPlaces.begin(), kPlaces.end(), key) != kPlaces.end();
}

}  // namespace ditto
