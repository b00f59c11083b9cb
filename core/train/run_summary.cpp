#include "core/train/run_summary.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <ditto/text.h>

#include "core/assembly/step_shares.h"
#include "core/config/late_options.h"
#include "core/config/numerics.h"
#include "core/sample/generate.h"
#include "core/train/sheets.h"
#include "core/verify/audit.h"

namespace ditto {

void say_beginning(const Training& training, RunLog& log) {
  const auto& recipe = training.recipe;
  const auto& mesh = training.mesh;
  const auto& assembly = *training.assembly;
  const auto& run = recipe.run;
  const auto frozen = assembly.main->frozen();
  log.say(fmt::format("{}: {} with {} learned numbers{}, {} on {}, {} thread{} a rank, {} rank{}", run.name,
                      recipe.model.plugin, assembly.networks->parameters(),
                      frozen > 0 ? fmt::format(" beside {} frozen ones", frozen) : "", run.precision, run.device,
                      torch::get_num_threads(), torch::get_num_threads() == 1 ? "" : "s", mesh.world_size(),
                      mesh.world_size() == 1 ? "" : "s"));
  log.say(fmt::format("data: {} samples to learn from, batch {}, {} steps{}{}", assembly.train_data->size(), run.batch,
                      run.steps, training.sizes.report,
                      micro_batch_report(run, mesh, each_alone(recipe, *assembly.train_data), recipe.batch.plan)));
  for (const auto& line : notes_on_options(recipe)) log.say(line);
  const auto& ema = recipe.ema;
  if (training.optimizer->averages() && (ema.decay != EmaOptions().decay || ema.warmup != EmaOptions().warmup))
    log.say("warning: ema.decay and ema.warmup take no effect: the optimizer makes the average itself");
  for (const auto& line : assembly.notes()) log.say("note: " + line);
  if (const auto audit = audit_report(run, mesh); !audit.empty()) log.say(audit);
  if (assembly.guidance) {
    const auto& guidance = *assembly.guidance;
    const auto null = unlearned_null(recipe, guidance);
    if (guidance.uses_negative() && assembly.networks->conditions().empty())
      log.say("warning: guidance will have no effect: the model takes no condition");
    else if (!null.empty())
      log.say("warning: " + null);
  }
  for (const auto& line : sheet_notes(*training.assembly)) log.say(line);
  log.say("into " + shown(output_folder(recipe)));
}

void say_end(const Training& training, RunEnd end, RunLog& log) {
  const auto folder = shown(output_folder(training.recipe));
  if (const auto* audit = training.step->audit())
    log.say(fmt::format("audit: {} micro-batches computed again, {} with other numbers", audit->repeated(),
                        audit->differed()));
  if (end == RunEnd::stopped)
    log.say(fmt::format("stopped after step {} by a signal; the same command goes on from there, in {}", training.done,
                        folder));
  else if (end == RunEnd::complete_before)
    log.say(fmt::format("{} has made all of its {} steps before; raise run.steps to go on, or choose another run.name",
                        folder, training.done));
  else
    log.say(fmt::format("{} steps made; the run is in {}", training.done, folder));
}

}  // namespace ditto
