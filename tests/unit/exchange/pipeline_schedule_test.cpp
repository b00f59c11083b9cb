// What a pipeline's folder says of the schedule that its weights were trained with.
#include "core/exchange/foreign_folder.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "support/files.h"

namespace checkpoint = ditto::checkpoint;
using ditto::ErrorKind;
using namespace ditto::test;

TEST_CASE("a pipeline whose schedule is another than the recipe's is refused") {
  const TemporaryFolder folder;
  const auto require = [&](const ditto::ForeignConfig& ours) {
    return [&] { checkpoint::require_schedule(folder.path(), ours); };
  };
  const ditto::ForeignConfig ours{
      {"prediction_type", "epsilon"}, {"beta_start", 0.00085}, {"steps_offset", int64_t{1}}};
  require(ours)();  // it says nothing
  std::filesystem::create_directory(folder / "scheduler");
  const auto says = [&](const std::string& text) { write_text(folder / "scheduler/scheduler_config.json", text); };
  says(R"({"prediction_type": "epsilon", "beta_start": 0.00085, "steps_offset": 0, "trained_betas": null})");
  require(ours)();
  require({})();
  says(R"({"prediction_type": "v_prediction", "beta_start": 0.00085})");
  const auto error = error_of(ErrorKind::config, require(ours));
  CHECK(contains(error, "scheduler_config.json"));
  CHECK(contains(error, R"(prediction_type = "v_prediction", and [scheduler] makes it "epsilon")"));
  says(R"({"beta_start": 0.0001})");
  CHECK(contains(error_of(ErrorKind::config, require(ours)), "beta_start"));
  // What is not said is not done.
  says(R"({"beta_start": 0.00085})");
  auto zero = ours;
  zero["rescale_betas_zero_snr"] = true;
  CHECK(contains(error_of(ErrorKind::config, require(zero)), "rescale_betas_zero_snr = false"));
  says(R"({"rescale_betas_zero_snr": true})");
  require(zero)();
  require({})();
  CHECK(contains(error_of(ErrorKind::config, require(ours)), "rescale_betas_zero_snr = true"));
  says(R"({"rescale_betas_zero_snr": false})");
  require(ours)();
  // A flow is no chain of betas, and what diffusers has no schedule of is neither.
  auto chain = ours, flow = ours;
  chain["_class_name"] = "DDIMScheduler", flow["_class_name"] = "FlowMatchEulerDiscreteScheduler";
  says(R"({"_class_name": "PNDMScheduler"})");
  require(chain)();
  CHECK(
      contains(error_of(ErrorKind::config, require(flow)), "says PNDMScheduler, and [scheduler] is what is FlowMatch"));
  says(R"({"_class_name": "FlowMatchHeunDiscreteScheduler"})");
  require(flow)();
  CHECK(contains(error_of(ErrorKind::config, require(chain)), "says FlowMatchHeun"));
  CHECK(contains(error_of(ErrorKind::config, require({})), "[scheduler] is none of diffusers'"));
}
