#include "core/sample/generate.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <sstream>

#include <fmt/format.h>
#include <torch/types.h>

#include <ditto/error.h>

#include "core/measure/freed_memory.h"
#include "core/sample/handed.h"
#include "core/sample/prompts.h"

namespace ditto {

using torch::Tensor;

namespace {

constexpr int64_t kPromptsLookedAt = 16;  // prompts, each of which has to be encoded for it

// The guided model as a sampler sees it, for one batch of requests.
class GuidedModel {
 public:
  // `last`: the last of the schedule's times that have noise, and the one after it.
  GuidedModel(Networks& networks, const Guidance& guidance, const GenerateOptions& options, Batch conditions,
              const std::optional<Batch>& negative, std::pair<double, double> last)
      : networks_(networks),
        guidance_(guidance),
        watch_(options.watch),
        cache_(options.cache),
        last_(last),
        given_(std::move(conditions)) {
    if (cache_) cache_->begin();
    const auto all =
        torch::ones({given_.size()}, torch::TensorOptions(torch::kBool).device(networks.main->ctx->device));
    without_ = networks.main->model->without_condition(given_, all);
    if (!negative) return;
    for (const auto& [name, tensor] : negative->tensors) without_[name] = tensor;
  }

  Tensor operator()(const Tensor& x_t, double time) {
    const GuidanceCall call{x_t, time, level(*networks_.scheduler, time), given_,
                            [&](const std::vector<Evaluation>& wanted) { return evaluate(wanted, x_t, time); }};
    return guidance_.predict(call);
  }

 private:
  Tensors evaluate(const std::vector<Evaluation>& wanted, const Tensor& x_t, double time) {
    Tensors predictions;
    for (size_t first = 0; first < wanted.size();) {
      size_t last = first + 1;
      while (last < wanted.size() && wanted[last].network == wanted[first].network) ++last;
      const auto count = static_cast<int64_t>(last - first);
      if (watch_) watch_->begin_step();
      const auto x = count == 1 ? x_t : torch::cat(Tensors(static_cast<size_t>(count), x_t));
      const auto time_B = torch::full({x.size(0)}, time, torch::kDouble);
      const auto& network = wanted[first].network;
      std::function<Tensor(const Batch&)> run;
      if (cache_ && network.empty())
        run = [&](const Batch& batch) {
          return cache_->predict(batch, branches_of(wanted, first, last), is_last(time));
        };
      const auto made = networks_.predict(network, conditions_of(wanted, first, last), x, time_B, run);
      for (const auto& one : made.chunk(count)) predictions.push_back(one);
      first = last;
    }
    return predictions;
  }

  // One below another.
  Batch conditions_of(const std::vector<Evaluation>& wanted, size_t first, size_t last) const {
    const auto variant = [&](size_t i) -> const Batch& { return wanted[i].with_conditions ? given_ : without_; };
    Batch joined = variant(first);
    for (size_t i = first + 1; i < last; ++i) {
      const auto& more = variant(i);
      for (auto& [name, tensor] : joined.tensors) tensor = below(tensor, more.at(name));
      joined.ids.insert(joined.ids.end(), more.ids.begin(), more.ids.end());
      joined.weights.insert(joined.weights.end(), more.weights.begin(), more.weights.end());
    }
    return joined;
  }

  static std::vector<int> branches_of(const std::vector<Evaluation>& wanted, size_t first, size_t last) {
    std::vector<int> branches;
    for (size_t i = first; i < last; ++i) branches.push_back(wanted[i].with_conditions);
    return branches;
  }

  bool is_last(double time) const { return (time - last_.first) * (time - last_.second) <= 0; }

  // Texts of different lengths are padded at their ends by zeros, which a mask of theirs leaves out.
  static Tensor below(const Tensor& a, const Tensor& b) {
    if (a.dim() < 2 || a.size(1) == b.size(1)) return torch::cat({a, b});
    const auto padded = [&](const Tensor& x) {
      auto shape = x.sizes().vec();
      shape[1] = std::max(a.size(1), b.size(1)) - x.size(1);
      return shape[1] == 0 ? x : torch::cat({x, torch::zeros(shape, x.options())}, 1);
    };
    return torch::cat({padded(a), padded(b)});
  }

  Networks& networks_;
  const Guidance& guidance_;
  RankWatch* watch_;
  CachedBlocks* cache_;
  const std::pair<double, double> last_;
  Batch given_, without_;
};

// Rows [first, first + count) of what has a row for each request, on the model's device and in its precision.
Batch rows_of(const Batch& all, int64_t first, int64_t count, const std::vector<int64_t>& seeds,
              const Networks& networks, const std::map<std::string, SampleRequests::Followed>& followed = {}) {
  const auto& ctx = *networks.main->ctx;
  Batch batch;
  for (const auto& [name, tensor] : all.tensors) {
    const auto later = followed.find(name);
    const bool comes = later != followed.end() && later->second.rows;
    const auto rows =
        comes ? later->second.rows(first, count).to(tensor.scalar_type()) : tensor.slice(0, first, first + count);
    batch[name] = rows.to(ctx.device);
    if (ctx.compute == torch::kDouble && rows.is_floating_point()) batch[name] = batch[name].to(torch::kDouble);
  }
  batch.ids.assign(seeds.begin() + first, seeds.begin() + first + count);
  batch.weights.assign(static_cast<size_t>(count), 1);
  return batch;
}

// Of all ranks, in their order.
std::map<std::string, double> added_up(const std::map<std::string, double>& own, const Group& ranks) {
  std::string text;
  for (const auto& [what, number] : own) text += fmt::format("{}={}\n", what, number);
  std::map<std::string, double> all;
  for (const auto& part : ranks.all_gather_text(text)) {
    std::istringstream lines(part);
    for (std::string line; std::getline(lines, line);) {
      const auto at = line.rfind('=');
      all[line.substr(0, at)] += std::stod(line.substr(at + 1));
    }
  }
  return all;
}

// Throws what one of these ranks has failed by, the same on all of them.
void throw_together(const std::optional<Error>& failure, const Group& ranks) {
  const auto text = failure ? fmt::format("{} {}", static_cast<int>(failure->kind()), failure->what()) : std::string();
  for (const auto& part : ranks.all_gather_text(text))
    if (!part.empty())
      throw Error(static_cast<ErrorKind>(std::stoi(part)), {}, std::string_view(part).substr(part.find(' ') + 1));
}

class Generator {
 public:
  Generator(Networks& networks, const Sampler& sampler, const Guidance& guidance, const SampleRequests& requests,
            const GenerateOptions& options)
      : networks_(networks),
        sampler_(sampler),
        guidance_(guidance),
        requests_(requests),
        options_(options),
        batch_(batch_size(sampler, options)),
        shape_(requests.shape.empty() ? networks.shape_of_one() : requests.shape),
        dtype_(networks.main->ctx->compute == torch::kDouble ? torch::kDouble : torch::kFloat),
        prompts_(networks, requests.prompts, requests.seeds, requests.kept.get()),
        negative_prompts_(networks, requests.negative_prompts, requests.seeds, requests.kept.get()) {
    if (requests.negative) require_negative(guidance);
    if (!requests.negative_prompts.empty()) require_negative(guidance, "--negative-prompt");
  }

  void make(const std::vector<int64_t>& numbers, const std::function<void(const MadeBatch&)>& take) {
    const auto count = static_cast<int64_t>(requests_.seeds.size()), batches = static_cast<int64_t>(numbers.size());
    const auto& mesh = networks_.main->mesh();
    int64_t done = 0;
    std::optional<Error> failure;
    // Ranks that run in step cannot each take as many steps as its own sample asks for: they make all samples together.
    const bool together = sampler_.adaptive() && networks_.in_step(), in_step = networks_.in_step() || options_.in_step;
    const int64_t ranks = together ? 1 : mesh.data_ranks(), rank = together ? 0 : mesh.data_rank();
    const bool waits = options_.failure == GenerateOptions::Failure::together && (together || !in_step);
    for (int64_t round = 0; round * ranks < batches; ++round) {
      const int64_t k = std::min(round * ranks + rank, batches - 1);
      const bool is_own = k == round * ranks + rank && (!together || mesh.data_rank() == 0);
      if (!is_own && !in_step) continue;
      const int64_t first = numbers[static_cast<size_t>(k)] * batch_, mine = std::min(batch_, count - first);
      std::map<std::string, double> decided;
      Tensor samples;
      try {
        samples = some(first, mine, decided);
      } catch (const Error& error) {
        if (!waits) throw;
        failure = error;
        break;
      }
      take({first, samples.to(dtype_), is_own});
      if (!is_own) continue;  // computed again, for ranks that run in step
      for (const auto& [what, number] : decided) decided_[what] += number;
      done += mine;
      if (options_.progress) options_.progress(done);
    }
    if (waits) throw_together(failure, mesh.data_group());
    if (options_.decisions) *options_.decisions = added_up(decided_, mesh.data_group());
  }

  Tensor all() {
    const auto count = static_cast<int64_t>(requests_.seeds.size());
    auto shape = shape_;
    shape.insert(shape.begin(), count);
    auto result = torch::zeros(shape, torch::TensorOptions(dtype_).device(networks_.main->ctx->device));
    std::vector<int64_t> numbers(static_cast<size_t>((count + batch_ - 1) / batch_));
    std::iota(numbers.begin(), numbers.end(), 0);
    make(numbers, [&](const MadeBatch& made) {
      if (made.is_own) result.slice(0, made.first, made.first + made.samples.size(0)).copy_(made.samples);
    });
    // Every sample was made by one rank, the others' are zero: as whole numbers adding them changes no bit, of -0
    // neither.
    return networks_.main->mesh()
        .data_group()
        .all_reduce(result.view(dtype_ == torch::kDouble ? torch::kLong : torch::kInt))
        .view(dtype_);
  }

 private:
  Tensor some(int64_t first, int64_t count, std::map<std::string, double>& decided) {
    // A seed means the same picture in every run of the same weights.
    const Random random(static_cast<std::uint64_t>(options_.series));
    const auto device = networks_.main->ctx->device;
    auto conditions = completed(
        networks_, rows_of(requests_.conditions, first, count, requests_.seeds, networks_, requests_.followed),
        options_.series);
    if (!requests_.prompts.empty()) prompts_.add_to(conditions, first);
    const auto seeds = conditions.ids;
    std::optional<Batch> negative;
    if (requests_.negative) negative = rows_of(*requests_.negative, first, count, requests_.seeds, networks_);
    if (!requests_.negative_prompts.empty()) {
      if (!negative) negative = rows_of({}, first, count, requests_.seeds, networks_);
      negative_prompts_.add_to(*negative, first);
    }
    auto noise = options_.noise.defined() ? options_.noise.slice(0, first, first + count)
                                          : random.normal(Purpose::start_noise, seeds, shape_, dtype_);
    noise = noise.to(dtype_).to(device);
    const auto sized = networks_.scheduler->for_size(shape_);
    const auto& scheduler = sized ? *sized : *networks_.scheduler;
    const auto grid = scheduler.time_grid(options_.steps);
    GuidedModel model(networks_, guidance_, options_, std::move(conditions), negative,
                      {grid.end()[-2], grid.end()[-1]});
    SamplingRequest request{
        scheduler,
        std::ref(model),
        noise * scheduler.start_scale(grid.front()),
        options_.steps,
        [&](int64_t step) {
          return random.normal(Purpose::sampler_noise, seeds, shape_, dtype_, static_cast<uint32_t>(step)).to(device);
        },
        {},
        options_.clip,
        [&](const std::string& what, double number) { decided[what] += number; }};
    const auto samples = guarded("sampling", [&] { return sampler_.sample(request); });
    if (options_.cache) decided.insert(options_.cache->decisions().begin(), options_.cache->decisions().end());
    return samples;
  }

  Networks& networks_;
  const Sampler& sampler_;
  const Guidance& guidance_;
  const SampleRequests& requests_;
  const GenerateOptions& options_;
  std::map<std::string, double> decided_;  // by the samples of this rank
  const int64_t batch_;
  const std::vector<int64_t> shape_;
  const at::ScalarType dtype_;
  EncodedPrompts prompts_, negative_prompts_;
};

}  // namespace

void require_negative(const Guidance& guidance, const std::string& option) {
  if (guidance.uses_negative()) return;
  throw Error(ErrorKind::config, option, "is not used by this guidance",
              "choose guidance.plugin = \"cfg\" with a scale (--guidance 4), or leave it out");
}

std::string idle_guidance(Networks& networks, const Guidance& guidance, const SampleRequests& requests) {
  if (!guidance.uses_negative() || requests.negative || !requests.negative_prompts.empty()) return {};
  if (networks.conditions().empty()) return "the model takes no condition";
  torch::NoGradGuard no_grad;
  const auto all = torch::ones({1}, torch::TensorOptions(torch::kBool).device(networks.main->ctx->device));
  EncodedPrompts prompts(networks, requests.prompts, requests.seeds, requests.kept.get());
  const auto count = static_cast<int64_t>(requests.seeds.size());
  const auto looked_at = requests.prompts.size() > 1 ? std::min(count, kPromptsLookedAt) : count;
  for (int64_t i = 0; i < looked_at; ++i) {
    auto given = completed(networks, rows_of(requests.conditions, i, 1, requests.seeds, networks), 0);
    if (!requests.prompts.empty()) prompts.add_to(given, i);
    const auto without = networks.main->model->without_condition(given, all);
    for (const auto& [name, tensor] : given.tensors) {
      const auto& other = without.at(name);
      if (tensor.sizes() != other.sizes() || !torch::equal(tensor, other)) return {};
    }
  }
  if (looked_at < count) return {};
  return "the model predicts the same without these conditions as with them";
}

std::string unlearned_null(const Recipe& recipe, const Guidance& guidance) {
  const auto* dropout = recipe.resolved().find_path("objective.condition_dropout");
  const auto* share = dropout ? dropout->as<double>() : nullptr;
  const auto* whole = dropout ? dropout->as<int64_t>() : nullptr;
  if (!guidance.uses_negative() || !((share && *share == 0) || (whole && *whole == 0))) return {};
  return "guidance leads away from the null condition, which is never learned with objective.condition_dropout = 0" +
         std::string(recipe.run.init_from.empty() ? "" : ", unless run.init_from has learned it");
}

int64_t batch_size(const Sampler& sampler, const GenerateOptions& options) {
  return sampler.adaptive() ? 1 : options.batch;
}

namespace {

void begin(Networks& networks) {
  report::keep_freed_memory();
  networks.set_phase(Phase::sample);
}

}  // namespace

void generate(Networks& networks, const Sampler& sampler, const Guidance& guidance, const SampleRequests& requests,
              const GenerateOptions& options, const std::vector<int64_t>& batches,
              const std::function<void(const MadeBatch&)>& take) {
  const torch::NoGradGuard no_grad;
  begin(networks);
  Generator(networks, sampler, guidance, requests, options).make(batches, take);
}

Tensor generate(Networks& networks, const Sampler& sampler, const Guidance& guidance, const SampleRequests& requests,
                const GenerateOptions& options) {
  const torch::NoGradGuard no_grad;
  begin(networks);
  return Generator(networks, sampler, guidance, requests, options).all();
}

}  // namespace ditto
