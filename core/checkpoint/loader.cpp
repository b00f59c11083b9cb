#include <algorithm>
#include <set>
#include <tuple>

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/positions.h"
#include "core/checkpoint/reader.h"
#include "core/checkpoint/tensor_file.h"
#include "core/mesh/whole.h"

namespace ditto::checkpoint {

namespace {

constexpr size_t kNamedProblems = 3;

enum class Convert { no, yes };

// "network.NAME." of a tensor of another network, "" of the model's own.
std::string network_of(const std::string& name) {
  if (!name.starts_with(kNetworkPrefix)) return {};
  const auto end = name.find('.', std::string_view(kNetworkPrefix).size());
  return end == std::string::npos ? std::string() : name.substr(0, end + 1);
}

// Collects what is to be read and what does not fit; changes nothing until all fits.
class Plan {
 public:
  Plan(Reader& reader, Convert convert, Fit fit = {}) : reader_(reader), convert_(convert), fit_(std::move(fit)) {}

  // `name` in `section` goes to `tensor`, which is laid out as the entry is.
  void add(const std::string& section, const std::string& name, const LayoutEntry& entry, const torch::Tensor& tensor) {
    const Section& there = reader_.index().section(section);
    wanted_[section].insert(name);
    networks_.insert(network_of(name));
    const auto found = there.find(name);
    if (found == there.end()) return missing(there, section, name);
    const std::string dtype(formats::dtype_name(dtype_of(tensor, "tensor '" + name + "'")));
    const IndexedTensor& indexed = found->second;
    const bool fits = indexed.shape == entry.full_shape;
    if (!fits && is_fitted(name, indexed, entry)) return;
    if (!fits) ways_out_.insert("run.init_other_shape = \"skip\"");
    if (!fits || (convert_ == Convert::no && indexed.dtype != dtype))
      return problem(section, name,
                     "is " + indexed.dtype + " " + to_text(indexed.shape) + " there and " + dtype + " " +
                         to_text(entry.full_shape) + " here");
    ++fitted_.taken;
    for (const Rectangle& rectangle : entry.slices()) plan(name, indexed, rectangle, tensor);
  }

  // Names of the section that nobody here asked for; in a stage of a pipeline they may be another's.
  void others(const std::string& section, bool all_are_here) {
    for (const auto& [name, tensor] : reader_.index().section(section)) {
      if (wanted_[section].count(name) || (convert_ == Convert::yes && is_of_another(name))) continue;
      fitted_.extra.push_back(name);
      if (!all_are_here || fit_.extra != Fit::Extra::refuse) continue;
      ways_out_.insert("run.init_extra = \"skip\"");
      problem(section, name, "is there, and has no place here");
    }
  }

  void problem(const std::string& section, const std::string& name, const std::string& what) {
    problems_.push_back((section == kModel ? "tensor '" : section + " tensor '") + name + "' " + what);
  }

  Fitted run() {
    refuse_problems();
    // As their files have them, whatever their names, so that a chunk is read once.
    for (Move& move : moves_) move.at = reader_.entry(*move.from, *move.part.piece).offset;
    std::stable_sort(moves_.begin(), moves_.end(), [](const Move& a, const Move& b) {
      return std::tie(a.part.piece->file, a.at) < std::tie(b.part.piece->file, b.at);
    });
    for (const Move& move : moves_) reader_.check(*move.from, move.part);  // before the first number is written
    torch::NoGradGuard no_grad;
    std::vector<torch::Tensor> tables;
    for (const Table& table : tables_) tables.push_back(interpolated(whole(table), table.entry->full_shape));
    for (size_t i = 0; i < tables.size(); ++i) fill(*tables_[i].entry, tables[i]);
    for (Move& move : moves_) move.target.copy_(reader_.read(*move.from, move.part));
    return std::move(fitted_);
  }

 private:
  // Of a part of the run whose weights nobody here has asked for.
  bool is_of_another(const std::string& name) const {
    return name.starts_with(kObjectivePrefix) || networks_.count(network_of(name)) == 0;
  }

  struct Move {
    const IndexedTensor* from;
    Reader::Part part;
    torch::Tensor target;
    uint64_t at = 0;  // of the piece, in its file
  };

  struct Table {  // of positions, of another size
    std::string name;
    const IndexedTensor* from;
    const LayoutEntry* entry;
  };

  // What is asked for is done with a tensor of another shape.
  bool is_fitted(const std::string& name, const IndexedTensor& from, const LayoutEntry& entry) {
    const std::string sizes = name + " " + to_text(from.shape) + " -> " + to_text(entry.full_shape);
    if (fit_.other_shape == Fit::OtherShape::skip) {
      fitted_.skipped.push_back(sizes);
      return true;
    }
    const auto& tables = fit_.position_tables;
    if (fit_.other_shape != Fit::OtherShape::positions ||
        std::find(tables.begin(), tables.end(), name) == tables.end() || !can_interpolate(from.shape, entry.full_shape))
      return false;
    tables_.push_back({name, &from, &entry});
    fitted_.interpolated.push_back(sizes);
    ++fitted_.taken;
    return true;
  }

  // All of a table: each rank interpolates it for itself, and keeps what it holds.
  torch::Tensor whole(const Table& table) {
    const Box all{Dims(table.from->shape.size(), 0), table.from->shape};
    torch::Tensor result;
    for (const Reader::Part& part : reader_.cover(table.name, *table.from, all)) {
      const torch::Tensor numbers = reader_.read(*table.from, part);
      if (!result.defined()) result = torch::empty(table.from->shape, numbers.options());
      torch::Tensor target = result;
      for (size_t d = 0; d < part.box.size.size(); ++d)
        target = target.narrow(static_cast<int64_t>(d), part.box.start[d], part.box.size[d]);
      target.copy_(numbers);
    }
    return result;
  }

  static void fill(const LayoutEntry& entry, const torch::Tensor& global) {
    for (const Rectangle& rectangle : entry.slices()) {
      torch::Tensor target = entry.tensor.detach(), from = global;
      for (size_t d = 0; d < rectangle.size.size(); ++d) {
        const auto dim = static_cast<int64_t>(d);
        target = target.narrow(dim, rectangle.local_start[d], rectangle.size[d]);
        from = from.narrow(dim, rectangle.global_start[d], rectangle.size[d]);
      }
      target.copy_(from);
    }
  }

  void plan(const std::string& name, const IndexedTensor& from, const Rectangle& to, const torch::Tensor& tensor) {
    for (const Reader::Part& part : reader_.cover(name, from, {to.global_start, to.size})) {
      torch::Tensor target = tensor.detach();
      for (size_t d = 0; d < to.size.size(); ++d)
        target = target.narrow(static_cast<int64_t>(d), to.local_start[d] + part.box.start[d] - to.global_start[d],
                               part.box.size[d]);
      moves_.push_back({&from, part, std::move(target), 0});
    }
  }

  void missing(const Section& there, const std::string& section, const std::string& name) {
    if (fit_.missing == Fit::Missing::keep) return fitted_.kept.push_back(name);
    ways_out_.insert("run.init_missing = \"new\"");
    std::vector<std::string> names;
    for (const auto& item : there) names.push_back(item.first);
    const std::string near = nearest(name, names);
    problem(section, name, "is not there" + (near.empty() ? "" : " (the nearest name is '" + near + "')"));
  }

  void refuse_problems() const {
    if (problems_.empty()) return;
    std::string text = "does not fit what is to be loaded: ";
    for (size_t i = 0; i < std::min(problems_.size(), kNamedProblems); ++i) text += (i == 0 ? "" : ", ") + problems_[i];
    if (problems_.size() > kNamedProblems)
      text += ", and " + std::to_string(problems_.size() - kNamedProblems) + " more";
    std::string remedy = "use the recipe it was made with (recipe.toml in it), or another checkpoint";
    for (const auto& way : ways_out_)
      if (fit_.of_a_start) remedy += (way == *ways_out_.begin() ? "; or start from what fits: " : ", ") + way;
    throw Error(ErrorKind::checkpoint, reader_.folder(), text, remedy);
  }

  Reader& reader_;
  Convert convert_;
  Fit fit_;
  Fitted fitted_;
  std::vector<Move> moves_;
  std::vector<Table> tables_;
  std::vector<std::string> problems_;
  std::set<std::string> ways_out_;  // options of a run that starts from weights
  std::map<std::string, std::set<std::string>> wanted_;
  std::set<std::string> networks_;  // of what is wanted
};

bool holds_all(const Layout& layout) {
  return !layout.entries.empty() && std::all_of(layout.entries.begin(), layout.entries.end(),
                                                [](const auto& entry) { return entry.absent.empty(); });
}

std::string list_of(const std::set<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

// A stage of a pipeline may have no parameter of which there is a state of some kind, and another rank all whole ones.
void check_optimizer(const Reader& reader, const std::set<std::string>& kinds, bool all_here,
                     const Optimizer::Counters& counters) {
  std::set<std::string> there, counted_there, counted;
  for (const auto& item : reader.index().section(kOptimizer)) there.insert(item.first.substr(0, item.first.find('/')));
  for (const auto& item : reader.state().counters) counted_there.insert(item.first);
  for (const auto& item : counters) counted.insert(item.first);
  const bool fits = all_here ? there == kinds : std::includes(there.begin(), there.end(), kinds.begin(), kinds.end());
  if (fits && counted_there == counted) return;
  throw Error(ErrorKind::checkpoint, reader.folder(),
              "holds another optimizer's state: tensors " + list_of(there) + " and counters " + list_of(counted_there) +
                  " there, tensors " + list_of(kinds) + " and counters " + list_of(counted) + " here",
              "use the same [optimizer], or start a new run from its weights with [run] init_from");
}

[[noreturn]] void refuse_no_ema(const Reader& reader, const char* remedy) {
  throw Error(ErrorKind::checkpoint, reader.folder(), "has no EMA, and EMA is asked for", remedy);
}

void plan_optimizer(Plan& plan, const Reader& reader, const TrainState& state) {
  const auto& entries = state.layout->entries;
  const auto lists = state.optimizer->state();
  std::set<std::string> kinds;
  bool all_here = holds_all(*state.layout);
  for (const auto& [kind, of] : lists) {
    for (size_t i = 0; i < entries.size(); ++i) {
      if (!of.tensors.at(i).defined()) continue;
      kinds.insert(kind);
      plan.add(kOptimizer, kind + "/" + entries[i].name, entry_of(of, entries[i], of.tensors[i]), of.tensors[i]);
    }
    all_here = all_here && !of.whole;
  }
  if (!entries.empty()) check_optimizer(reader, kinds, all_here, state.optimizer->counters());
}

}  // namespace

void load(const std::string& path, TrainState& state) {
  Reader reader(path);
  Plan plan(reader, Convert::no);
  const auto& entries = state.layout->entries;
  const bool has_ema = state.ema && !state.ema->empty();
  if (has_ema && reader.index().section(kEma).empty())
    refuse_no_ema(reader, "set ema.enabled = false, or start a new run from its weights with run.init_from");
  for (size_t i = 0; i < entries.size(); ++i) {
    plan.add(kModel, entries[i].name, entries[i], entries[i].tensor);
    if (has_ema) plan.add(kEma, entries[i].name, entries[i], state.ema->at(i));
  }
  plan.others(kModel, holds_all(*state.layout));
  if (state.optimizer) plan_optimizer(plan, reader, state);
  plan.run();
  if (state.optimizer) state.optimizer->set_counters(reader.state().counters);
  state.step = reader.state().step;
  state.samples = reader.state().samples;
  state.seed = reader.state().seed;
  state.extra = reader.state().extra;
  state.recipe_toml = reader.recipe();
}

Fitted load_weights(const std::string& path, Layout& layout, Which which, const Fit& fit) {
  Reader reader(path);
  Plan plan(reader, Convert::yes, fit);
  const bool has_ema = !reader.index().section(kEma).empty();
  if (which == Which::ema && !has_ema) refuse_no_ema(reader, "use its weights");
  const std::string section = has_ema && which != Which::weights ? kEma : kModel;
  for (const LayoutEntry& entry : layout.entries) plan.add(section, entry.name, entry, entry.tensor);
  plan.others(section, holds_all(layout));
  return plan.run();
}

}  // namespace ditto::checkpoint
