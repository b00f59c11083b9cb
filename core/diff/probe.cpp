#include "core/diff/probe.h"

#include <algorithm>
#include <optional>

#include <torch/types.h>

#include "core/config/numerics.h"
#include "core/network/looking_on.h"

namespace ditto::diff {

using torch::Tensor;

namespace {

constexpr Axis kCutting[] = {Axis::tensor, Axis::context, Axis::expert};

bool is_cut(const LayoutEntry& entry) {
  return std::any_of(std::begin(kCutting), std::end(kCutting), [&](Axis axis) {
    const auto it = entry.cuts.find(axis);
    return it != entry.cuts.end() && it->second.count > 1;
  });
}

}  // namespace

// Where a tensor's numbers lie in the run: whose samples they are, and which tokens and heads of the whole.
struct Probe::Place {
  std::vector<int64_t> ids;
  int64_t token_dim = -1;
  Sequence sequence = {};
  int64_t first_token = 0;  // of those here, in the sequence
  int64_t head_dim = -1, heads = 0, first_head = 0;
  // Of each sample the places along its first dim that count; empty: all. How far it is padded depends on its batch.
  std::vector<int64_t> lengths = {};
};

// A unit that runs.
struct Probe::Open {
  std::string name;
  int64_t order;
  const RunningModel& model;
  Unit unit;
  std::vector<int64_t> ids;
  std::vector<int64_t> text_lengths;
  bool in_parts;             // samples of several sizes: what ops see of them is nobody's
  Sequence sequence = {};    // of the stream's tokens, where they are cut or packed
  int64_t tokens_here = -1;  // -1: neither
  int64_t at = 0;            // events so far
  bool in_attention = false;
  std::map<std::string, int> calls = {};  // of ops, by name
};

// Outermost around a network's units and attention.
class Probe::Around final : public ParallelStrategy {
 public:
  Around(Probe& probe, RunningModel& model) : probe_(probe), model_(model) {}
  std::optional<Axis> axis() const override { return std::nullopt; }
  UnitRun wrap_unit(UnitRun run) override {
    return [this, run = std::move(run)](const Unit& unit, UnitCall& call) { probe_.run_unit(model_, run, unit, call); };
  }
  AttentionOp wrap_attention(AttentionOp op) override {
    auto wrapped = op;
    wrapped.run = [this, inner = std::move(op)](const AttentionCall& call) {
      return probe_.attend(model_.mesh(), inner, call);
    };
    return wrapped;
  }

 private:
  Probe& probe_;
  RunningModel& model_;
};

Probe::Place Probe::place_in(const Batch& batch, const std::string& tensor) {
  Place place{batch.ids};
  if (const auto it = batch.lengths.find(tensor); it != batch.lengths.end()) place.lengths = it->second;
  return place;
}

Probe::Probe(Assembly& assembly) : assembly_(assembly), rank_(assembly.mesh.rank()) {
  for (auto* model : assembly.networks->training()) {
    around_.push_back(std::make_unique<Around>(*this, *model));
    model->wrap(*around_.back());
  }
  assembly.networks->table->watch(
      [this](const std::string& op, const OpInputs& inputs, const Tensors& outputs) { see_op(op, inputs, outputs); });
}

Probe::~Probe() { assembly_.networks->table->watch({}); }

void Probe::begins(int64_t step, Program& program) {
  step_ = step + 1;
  unit_calls_.clear();
  idle_.clear();
  program.prepare = [this, inner = std::move(program.prepare)](Batch batch) {
    auto made = inner(std::move(batch));
    const bool is_idle =
        std::all_of(made.weights.begin(), made.weights.end(), [](double weight) { return weight == 0; });
    if (is_idle) idle_.insert(made.ids);
    for (const auto& part : made) {
      if (is_idle) idle_.insert(part.ids);
      int64_t at = 0;
      for (const auto& [tensor, x] : part.tensors)
        note({{step_, Pass::forward, "batch", "makes", tensor},
              {.order = {looking_on::kBatch, at++}, .by = "objective"}},
             place_in(part, tensor), x);
    }
    return made;
  };
}

void Probe::run_unit(const RunningModel& model, const UnitRun& inner, const Unit& unit, UnitCall& call) {
  auto ids = unit.kind == Unit::Kind::block ? call.stream.ids : call.batch.ids;
  if (idle_.count(ids)) return inner(unit, call);
  const auto calls = ++unit_calls_[{&model, unit, ids.empty() ? -1 : ids.front(), ids.size()}];
  auto prefix = model.setting.prefix;
  if (!prefix.empty()) prefix.pop_back();
  Open open{
      to_text(unit) + (prefix.empty() ? "" : " of " + prefix) + (calls > 1 ? ", call " + std::to_string(calls) : ""),
      prefix.empty() ? looking_on::order_of(unit) : looking_on::kObjective,
      model,
      unit,
      std::move(ids),
      call.stream.condition.text_lengths,
      !call.batch.parts.empty()};
  const Sequence& tokens = call.stream;
  if (call.stream.x_BTD.defined()) {
    const int64_t here = call.stream.x_BTD.size(1);
    if (tokens.packing || here != tokens.tokens()) open.sequence = tokens, open.tokens_here = here;
  }
  see_fields(open, call.stream, "reads", {});
  const auto before = looking_on::tensors_of(call.stream);
  open_.push_back(&open);
  try {
    inner(unit, call);
  } catch (...) {
    open_.pop_back();
    throw;
  }
  open_.pop_back();
  see_fields(open, call.stream, "makes", before);
  see_outputs(open, call);
}

Probe::Named Probe::named(Open& open, const std::string& op, const std::string& tensor) const {
  return {{step_, Pass::forward, open.name, op, tensor}, {.order = {open.order, open.at++}}};
}

// What only passes through a unit has a gradient that other units have a part in. What a unit makes leaves it as a
// view: where two fields are one tensor, as a UNet's map and the skip that is left of it, or the unit itself goes on
// with it, its gradient would hold these parts or not, as blocks are computed again or not.
void Probe::see_fields(Open& open, Stream& stream, const std::string& op, const Tensors& without) {
  for (const auto& field : stream.fields()) {
    if (looking_on::is_one_of(*field.tensor, without)) continue;
    // Tables of positions are for blocks: where tokens were cut they are not made whole again.
    if (open.unit.kind == Unit::head && field.role == Role::constant) continue;
    Place place{open.ids, field.token_dim};
    if (field.token_dim >= 0) {
      place.sequence = *field.sequence;
      place.first_token = field.sequence->first_token + field.sequence->region_offset;
    }
    const auto& condition = stream.condition;
    if (field.tensor == &condition.text_BSE || field.tensor == &condition.text_mask_BS)
      place.lengths = condition.text_lengths;
    const auto what = named(open, op, field.name);
    note(what, place, *field.tensor);
    if (op != "makes") continue;
    if (field.tensor->requires_grad()) *field.tensor = field.tensor->view_as(*field.tensor);
    note_gradient(what, place, *field.tensor);
  }
}

void Probe::see_outputs(Open& open, const UnitCall& call) {
  const auto see = [&](const Outputs& outputs, const std::vector<int64_t>& ids) {
    for (const auto& [name, x] : outputs) {
      const auto what = named(open, "makes", name);
      note(what, {ids}, x);
      note_gradient(what, {ids}, x);
    }
  };
  if (!open.in_parts) return see(call.outputs, open.ids);
  for (size_t i = 0; i < call.batch.parts.size(); ++i)
    see(of_part(call.outputs, call.batch, i), call.batch.parts[i].ids);
}

// Heads are cut evenly and in their order along the tensor axis (Split::heads).
Tensors Probe::attend(const Mesh& mesh, const AttentionOp& inner, const AttentionCall& call) {
  if (open_.empty() || open_.back()->in_parts) return inner.run(call);
  Open& open = *open_.back();
  const int number = ++open.calls["attention"];
  const std::string op = "attention" + (number > 1 ? " #" + std::to_string(number) : "");
  const auto see = [&](const std::string& name, size_t part, bool is_text, const Tensor& x) {
    Place place{open.ids, is_text ? -1 : 1, call.parts[part].tokens, call.parts[part].tokens.first_token};
    if (is_text) place.sequence = {}, place.lengths = open.text_lengths;
    place.head_dim = 2;
    place.heads = x.size(2) * mesh.size(Axis::tensor);
    place.first_head = x.size(2) * mesh.index(Axis::tensor);
    auto what = named(open, op, name + (call.parts.size() > 1 ? " of sequence " + std::to_string(part) : ""));
    what.like.is_of_op = true;
    note(what, place, x);
    note_gradient(what, place, x);
  };
  const bool is_cross = call.pattern == Pattern::cross;
  for (size_t i = 0; i < call.parts.size(); ++i) {
    see("q", i, false, call.parts[i].q);
    see("k", i, is_cross, call.parts[i].k);
    see("v", i, is_cross, call.parts[i].v);
  }
  open.in_attention = true;
  auto outputs = inner.run(call);
  open.in_attention = false;
  for (size_t i = 0; i < outputs.size(); ++i) see("out", i, false, outputs[i]);
  return outputs;
}

// Of each input the parameter that it is, or null. By memory: a layer may compute with a copy, or with what a strategy
// has provided.
std::vector<const LayoutEntry*> Probe::parameters_of(const OpInputs& inputs) {
  std::vector<const LayoutEntry*> list;
  for (const auto& x : inputs.tensors) {
    const LayoutEntry* found = nullptr;
    if (x.defined() && x.numel() > 0)
      for (const auto& entry : open_.back()->model.layout.entries) {
        if (entry.unit != open_.back()->unit) continue;
        for (const auto& held : entry.parameter.held())
          if (held.defined() && held.numel() == x.numel() && !is_freed(held) &&
              held.const_data_ptr() == x.const_data_ptr())
            found = &entry;
      }
    list.push_back(found);
  }
  return list;
}

void Probe::see_op(const std::string& op, const OpInputs& inputs, const Tensors& outputs) {
  if (open_.empty() || open_.back()->in_attention || open_.back()->in_parts) return;
  Open& open = *open_.back();
  const auto parameters = parameters_of(inputs);
  bool cut = false;
  std::string name = op;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i]) continue;
    cut = cut || is_cut(*parameters[i]);
    if (name == op) name += " " + parameters[i]->name;
    LayoutEntry whole = *parameters[i];
    whole.cuts.erase(Axis::shard);  // it is whole where it is used
    auto what = named(open, "uses", whole.name);
    what.like.by = "op " + op;
    if (local_shape(whole) == inputs.tensors[i].sizes().vec()) note_parameter(what, whole, inputs.tensors[i]);
  }
  if (const int number = ++open.calls[name]; number > 1) name += " #" + std::to_string(number);
  if (cut) return;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto& x = outputs[i];
    if (!x.defined()) continue;
    const bool has_samples = x.dim() > 0 && x.size(0) == static_cast<int64_t>(open.ids.size());
    const bool has_tokens = x.dim() > 2 && x.size(1) == open.tokens_here;
    // Rows of tokens that were dealt out, or cut in some other way, are no other layout's.
    const auto& mesh = open.model.mesh();
    if (!has_samples && !has_tokens &&
        std::any_of(std::begin(kCutting), std::end(kCutting), [&](Axis axis) { return mesh.size(axis) > 1; }))
      continue;
    Place place{open.ids};
    if (has_tokens) {
      place.token_dim = 1;
      place.sequence = open.sequence;
      place.first_token = open.sequence.first_token + open.sequence.region_offset;
    }
    auto what = named(open, name, "result" + (outputs.size() > 1 ? " " + std::to_string(i + 1) : ""));
    what.like.is_of_op = true;
    note(what, place, x);
    note_gradient(what, place, x);
  }
}

void Probe::note_gradient(const Named& of, const Place& place, const Tensor& x) {
  if (!torch::GradMode::is_enabled() || !x.requires_grad() || x.is_leaf()) return;
  Named gradient = of;
  gradient.key.pass = Pass::backward;
  // Of what is whole on every rank (ditto/parallel/replicated.h), or a term of it (the rule of transposition).
  gradient.like.kind = is_one_number(assembly_.recipe) ? Kind::copies : Kind::terms;
  gradient.like.order = {-of.like.order.unit, -of.like.order.at};
  x.register_hook([this, gradient, place](const Tensor& grad) {
    if (grad.defined()) note(gradient, place, grad);
  });
}

void Probe::note(const Named& named, const Place& place, const Tensor& x) {
  if (!x.defined() || x.is_complex() || x.is_meta()) return;
  const torch::NoGradGuard no_grad;
  auto shape = x.sizes().vec();
  std::vector<int64_t> start(shape.size(), 0);
  auto dim = [&](int64_t d) { return static_cast<size_t>(d); };
  const int64_t first = place.first_token, samples = static_cast<int64_t>(place.ids.size());
  const bool has_heads = place.head_dim >= 0 && place.head_dim < x.dim();
  if (has_heads) shape[dim(place.head_dim)] = place.heads, start[dim(place.head_dim)] = place.first_head;
  const int64_t here = place.token_dim >= 0 ? x.size(place.token_dim) : 0;
  const bool has_tokens = place.token_dim >= 0 && first + here <= place.sequence.tokens();
  const auto& packing = place.sequence.packing;
  if (has_tokens && packing && packing->lengths.size() == place.ids.size()) {
    int64_t begin = 0;  // of the sample, in the pack
    for (size_t i = 0; i < place.ids.size(); begin += packing->lengths[i++]) {
      const int64_t from = std::max(begin, first), to = std::min(begin + packing->lengths[i], first + here);
      if (from >= to) continue;
      shape[dim(place.token_dim)] = packing->lengths[i];
      start[dim(place.token_dim)] = from - begin;
      enter(named, x.narrow(place.token_dim, from - first, to - from), {place.ids[i], 1}, shape, start);
    }
    return;
  }
  if (has_tokens) shape[dim(place.token_dim)] = place.sequence.tokens(), start[dim(place.token_dim)] = first;
  if (place.token_dim == 0) return enter(named, x, {}, shape, start);  // the same for all samples
  if (x.dim() == 0 || x.size(0) != samples)
    return enter(named, x, {samples > 0 ? place.ids.front() : -1, samples}, shape, start);
  shape.erase(shape.begin()), start.erase(start.begin());
  for (int64_t i = 0; i < samples; ++i) {
    auto one = x.select(0, i);
    if (place.lengths.size() == place.ids.size() && one.dim() > 0 && place.lengths[dim(i)] <= one.size(0)) {
      one = one.narrow(0, 0, place.lengths[dim(i)]);
      shape[0] = one.size(0);
    }
    enter(named, one, {place.ids[dim(i)], 1}, shape, start);
  }
}

void Probe::note_parameter(const Named& named, const LayoutEntry& entry, const Tensor& x) {
  const torch::NoGradGuard no_grad;
  for (const auto& block : entry.slices()) {
    auto here = x.detach();
    for (size_t d = 0; d < block.size.size(); ++d)
      here = here.narrow(static_cast<int64_t>(d), block.local_start[d], block.size[d]);
    enter(named, here, {}, entry.full_shape, block.global_start);
  }
}

void Probe::enter(const Named& named, const Tensor& x, Samples samples, std::vector<int64_t> shape,
                  std::vector<int64_t> start) {
  auto like = named.like;
  like.dtype = c10::toString(x.scalar_type());
  Piece piece{rank_, std::move(start), x.sizes().vec(), {}};
  piece.print = print_of(x, shape, piece.start);
  const std::lock_guard lock(mutex_);
  events_.add(named.key, like, samples, std::move(shape), std::move(piece));
}

Probe::Named Probe::of_update(int64_t unit, int64_t at, const std::string& in, const std::string& op,
                              const std::string& tensor) {
  return {{step_, Pass::update, in, op, tensor}, {.order = {unit, at}}};
}

void Probe::has_gradients(const LossLedger& losses, const Tensor& norm) {
  int64_t at = 0;
  // What others have entered is zero here.
  for (const auto& [name, row] : losses.entered()) {
    const Named loss{{step_, Pass::forward, "losses", "makes", name}, {.order = {looking_on::kLosses, at++}}};
    for (size_t i = 0; i < row.size(); ++i)
      if (row[i] != 0)
        enter(loss, torch::scalar_tensor(row[i], torch::kDouble), {losses.first_id() + static_cast<int64_t>(i), 1}, {},
              {});
  }
  at = 0;
  for (const auto& entry : assembly_.networks->learned().entries) {
    const auto what = of_update(0, at++, to_text(entry.unit), "sums the gradient", entry.name);
    if (entry.tensor.grad().defined()) note_parameter(what, entry, entry.tensor.grad());
  }
  enter(of_update(1, 0, "run", "makes", "gradient norm"), norm.cpu(), {}, {}, {});
}

void Probe::updates(Update& update) { averages_ = update.average; }

void Probe::has_updated() {
  int64_t at = 0;
  const auto& entries = assembly_.networks->learned().entries;
  for (const auto& entry : entries)
    note_parameter(of_update(2, at++, to_text(entry.unit), kUpdates, entry.name), entry, entry.tensor);
  for (size_t i = 0; i < averages_.size(); ++i)
    note_parameter(of_update(3, static_cast<int64_t>(i), to_text(entries[i].unit), kAverages, entries[i].name),
                   entries[i], averages_[i]);
}

}  // namespace ditto::diff
