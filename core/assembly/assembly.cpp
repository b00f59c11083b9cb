#include "core/assembly/assembly.h"

#include "core/assembly/encoded_encoders.h"
#include "core/assembly/memory_format.h"
#include "core/components/optimizers.h"
#include "core/components/sources.h"
#include "core/config/numerics.h"
#include "core/data/encoded_set.h"
#include "core/data/held_out.h"
#include "core/mesh/whole.h"

namespace ditto {

namespace {

std::string counted(size_t count, const std::string& of) { return std::to_string(count) + " " + of; }

// At the start rather than at the first checkpoint.
void refuse_odd_state(const Layout& layout, Optimizer& optimizer, const std::string& id) {
  const auto& entries = layout.entries;
  for (const auto& [kind, state] : optimizer.state()) {
    const auto refuse = [&, kind = kind](const std::string& of, const std::string& what) {
      throw Error(ErrorKind::plugin, "optimizer '" + id + "'", "its state \"" + kind + "\"" + of + " " + what,
                  "Optimizer::state runs along the parameters, each tensor in the shape of its own");
    };
    if (state.block < 1) refuse("", "is in blocks of " + std::to_string(state.block));
    if (state.tensors.size() != entries.size())
      refuse("", "has " + counted(state.tensors.size(), "tensors for ") + counted(entries.size(), "parameters"));
    for (size_t i = 0; i < entries.size(); ++i) {
      if (!state.tensors[i].defined()) continue;
      const auto expected = local_shape(entry_of(state, entries[i], state.tensors[i]));
      if (state.tensors[i].sizes() != at::IntArrayRef(expected))
        refuse(" of \"" + entries[i].name + "\"", "has the shape " + c10::str(state.tensors[i].sizes()) +
                                                      ", expected " + c10::str(at::IntArrayRef(expected)));
    }
  }
}

}  // namespace

Assembly::Assembly(Recipe& recipe_, Registry& registry, const Mesh& mesh_, const AssemblyParts& parts, Log log)
    : recipe(recipe_), mesh(mesh_), components(recipe_, registry, std::move(log)) {
  components.kept_before = parts.kept;
  if (parts.data) open_data(parts);
  std::variant<TensorSpecs, SavedShapes> from;
  if (parts.saved) from = *parts.saved;
  if (!parts.saved) from = specs_before_encoders(*(train_data ? train_data : validation_data));
  networks = std::make_unique<Networks>(components, mesh, from, parts.frozen);
  for (const auto& source : {train_data, validation_data})
    if (source) take_encoded(recipe, *networks, *source, parts.frozen);
  main = networks->main.get();
  check_memory_format(recipe, *main);
  if (parts.measures) measure_memory_format(recipe, registry, *main, mesh.world());
  if (parts.objective) make_objective();
  if (parts.sampler || recipe.sampler) make_sampler(parts);
  if (parts.objective) networks->refuse_unused();
  if (parts.objective) refuse_idle(recipe.optimizer_groups, learned_names());
  networks->cut(parts.weights);
  if (sampler && recipe.cache) cache = make_cache(components, *main, *sampler, objective.get());
  whole_ = make_whole_tensors(networks->learned(), mesh);
}

void Assembly::open_data(const AssemblyParts& parts) {
  const auto open = [&](SplitOf split) {
    return open_source(components, {.split = split, .folder = recipe.run.folder, .shapes_only = parts.shapes_only});
  };
  if (!parts.held_out_alone) train_data = open(SplitOf::train);
  if (recipe.validate.every > 0) validation_data = open(SplitOf::validation);
  if (train_data && validation_data && !parts.shapes_only) require_held_out(*train_data, *validation_data);
  if (parts.opened) parts.opened(train_data.get(), validation_data.get());
}

void Assembly::make_objective() {
  require(recipe, recipe.objective, "objective");
  Objective::Needs needs{main->model.get(), networks->scheduler.get()};
  needs.network = [this](const std::string& name) -> Network& { return networks->network(name); };
  objective = components.make<Objective>("objective", recipe.objective, needs);
  networks->add(*objective);
}

// Before a run trains up to its first sheet, or computes samples, that nobody could see.
void Assembly::make_sampler(const AssemblyParts& parts) {
  require(recipe, recipe.sampler, "sampler");
  require(recipe, recipe.scheduler, "scheduler");
  sampler = components.make<Sampler>("sampler", recipe.sampler, {});
  refuse_pair(recipe, *sampler, *networks->scheduler);
  guidance =
      components.make<Guidance>("guidance", recipe.guidance,
                                {[this](const std::string& name) { networks->network(name).require_same_schedule(); }});
  if (!parts.sampler || parts.latents) return;
  if (const auto no_pictures = networks->no_pictures(); !no_pictures.empty())
    throw Error(ErrorKind::config, recipe.model.where, "model \"" + recipe.model.plugin + "\" " + no_pictures,
                "train it with validate.grid_every = 0, and sample it with --save-latents");
}

// Before a pipeline shares them out.
std::vector<std::string> Assembly::learned_names() const {
  std::vector<std::string> names;
  for (const auto* model : networks->training())
    for (const auto& entry : model->layout.entries)
      if (entry.trains) names.push_back(entry.name);
  return names;
}

std::shared_ptr<Optimizer> Assembly::make_optimizer() {
  require(recipe, recipe.optimizer, "optimizer");
  Optimizer::Needs needs{{}, whole_.get(), networks->table.get(), is_one_number(recipe)};
  for (const auto& entry : networks->learned().entries) {
    const auto tensor = is_freed(entry.tensor) ? torch::empty_like(entry.tensor, torch::kMeta) : entry.tensor;
    needs.parameters.push_back({entry.name, tensor, entry.full_shape});
  }
  auto made = ditto::make_optimizer(components, needs);
  std::string plugins = recipe.optimizer.plugin;
  for (const auto& group : recipe.optimizer_groups) plugins += ", " + group.component.plugin;
  refuse_odd_state(networks->learned(), *made, plugins);
  return made;
}

}  // namespace ditto
