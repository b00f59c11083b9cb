#include "core/encode/encode.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <ditto/error.h>

#include "core/assembly/encoded_encoders.h"
#include "core/components/encoded_source.h"
#include "core/data/blend.h"
#include "core/data/names.h"
#include "core/encode/encoded_folder.h"
#include "core/encode/members.h"
#include "core/formats/text/json.h"

namespace ditto {

using torch::Tensor;

namespace {

// Sample after sample as they are numbered, whatever parts a blend has.
class InOrder final : public Source {
 public:
  explicit InOrder(std::shared_ptr<const Source> source) : source_(std::move(source)) {}
  int64_t size() const override { return source_->size(); }
  TensorSpecs makes() const override { return source_->makes(); }
  Sample read(int64_t index) const override { return source_->read(index); }
  SampleInfo info(int64_t index) const override { return source_->info(index); }
  std::vector<std::string> warnings() const override { return source_->warnings(); }
  std::string fingerprint() const override { return source_->fingerprint(); }

 private:
  std::shared_ptr<const Source> source_;
};

bool turns(const TensorSpec& spec) { return spec.name == names::kImage || spec.turns_with_image; }

// Samples by their numbers in the folder, by which encoders draw: those that are held out follow those to learn from.
Batch numbered(Batch read, int64_t first) {
  const auto number = [first](Batch& batch) {
    for (auto& id : batch.ids) id += first;
  };
  number(read);
  for (auto& part : read.parts) number(part);
  return read;
}

// Of the ranks that have the same samples the first.
bool is_first_with_its_samples(const Mesh& mesh) {
  return std::all_of(kAxes.begin(), kAxes.end(),
                     [&](Axis axis) { return is_data_axis(axis) || mesh.index(axis) == 0; });
}

EncodedNotes::Part part_of(const Source& source, const char* name, int64_t first) {
  return {name, source.size(), first, source.fingerprint(), ordered(source)};
}

EncodedNotes notes_of(const Assembly& assembly, const EncodeOptions& options) {
  const auto& networks = *assembly.networks;
  EncodedNotes notes;
  notes.format = options.format;
  notes.batch = options.batch;
  notes.shard_samples = options.shard_samples;
  notes.flip = options.flip;
  notes.numerics = numerics_of(assembly.recipe);
  notes.data = resolved_data(assembly.recipe);
  notes.encoders = noted_encoders(assembly.recipe, networks);
  notes.source = assembly.train_data->makes();
  TensorSpecs taken;
  for (const auto* one : networks.encoders_of_data()) {
    const auto takes = one->encoder->takes();
    const bool sees_pictures = std::any_of(takes.begin(), takes.end(), [&](const TensorSpec& spec) {
      const auto* made = find(notes.source, spec.name);
      return made && turns(*made);
    });
    for (const auto& spec : kept_of(*one, networks)) {
      if (sees_pictures) notes.turn.insert(spec.name);
      notes.made.push_back(spec);
    }
    taken.insert(taken.end(), takes.begin(), takes.end());
  }
  for (const auto& spec : notes.source) {
    if (find(taken, spec.name) && !is_text(spec)) continue;
    notes.kept.push_back(spec);
    if (turns(spec)) notes.turn.insert(spec.name);
  }
  notes.parts.push_back(part_of(*assembly.train_data, "train", 0));
  if (assembly.validation_data)
    notes.parts.push_back(part_of(*assembly.validation_data, "validation", assembly.train_data->size()));
  return notes;
}

// What NeMo's parts hold beside the latent: one embedded text [S, E], whatever its name is; none where there is none.
// Throws Error(config) where encoders make more than that.
std::optional<std::string> text_for_nemo(const Networks& networks) {
  std::vector<std::string> texts, others;
  for (const auto& spec : networks.main->setting.needs.inputs) {
    const bool is_made = std::any_of(networks.encoders.begin(), networks.encoders.end(),
                                     [&](const auto& one) { return find(one->encoder->makes(), spec.name); });
    const bool is_latent = spec.name == names::kClean || spec.name == names::kInput;
    if (!at::isFloatingType(spec.dtype) || is_latent || find(networks.empty_text_specs(), spec.name)) continue;
    if (spec.shape.size() == 2)
      texts.push_back(spec.name);
    else if (is_made)
      others.push_back(spec.name);
  }
  if (texts.size() > 1 || !others.empty()) {
    std::string all;
    for (const auto* some : {&texts, &others})
      for (const auto& name : *some) all += (all.empty() ? "\"" : ", \"") + name + "\"";
    throw Error(ErrorKind::config, "--format nemo",
                "has room for a latent and one text of tokens a sample, and there would be " + all,
                "leave encoders out until one text is left, or take --format safetensors, which keeps all");
  }
  return texts.empty() ? std::nullopt : std::optional(texts.front());
}

void check(const Assembly& assembly, const EncodedNotes& notes) {
  if (notes.made.empty())
    throw Error(ErrorKind::config, assembly.recipe.name, "has no encoder of its data, and there is nothing to keep",
                "add one: [encoder.NAME] with plugin = \"…\"");
  if (!notes.flip) return;
  require_known_turns(*assembly.train_data);
  if (notes.format == EncodeOptions::kNemo)
    throw Error(ErrorKind::config, "--flip", "is of two sides of a picture, and --format nemo has one of each",
                "leave one of them out");
  if (std::none_of(notes.made.begin(), notes.made.end(),
                   [&](const TensorSpec& spec) { return notes.turn.count(spec.name) > 0; }))
    throw Error(ErrorKind::config, "--flip", "mirrors pictures, and no encoder of this recipe sees one",
                "leave it out: loader.flip mirrors what is not encoded");
}

class Encoding {
 public:
  Encoding(Assembly& assembly, const EncodeOptions& options)
      : assembly_(assembly),
        options_(options),
        mesh_(assembly.mesh),
        writes_(is_first_with_its_samples(assembly.mesh)),
        folder_(options.out, checked_notes(assembly, options)),
        nemo_text_(options.format == EncodeOptions::kNemo ? text_for_nemo(*assembly.networks) : std::nullopt),
        id_(id_of(folder_.notes())) {}

  int64_t run() {
    const auto missing = prepare();
    const bool in_step = std::any_of(assembly_.networks->encoders.begin(), assembly_.networks->encoders.end(),
                                     [](const auto& one) { return one->in_step(); });
    const auto count = static_cast<int64_t>(missing.size());
    const int64_t ranks = mesh_.data_ranks(), rank = mesh_.data_rank();
    for (int64_t first = 0; first < count; first += ranks) {
      const auto at = [&](int64_t k) -> const auto& {
        return *missing[static_cast<size_t>(std::min(first + k, count - 1))];
      };
      const bool is_own = first + rank < count;
      if (!is_own && !in_step) continue;
      int64_t batches = batches_of(at(rank));
      for (int64_t k = 0; in_step && k < ranks; ++k) batches = std::max(batches, batches_of(at(k)));
      encode(at(rank), is_own, batches);
    }
    if (mesh_.world_size() > 1) mesh_.world().barrier();
    return mesh_.rank() == 0 ? finish() : 0;
  }

 private:
  using Shard = EncodedFolder::Shard;

  static EncodedNotes checked_notes(const Assembly& assembly, const EncodeOptions& options) {
    auto notes = notes_of(assembly, options);
    check(assembly, notes);
    return notes;
  }

  int64_t finish() const {
    const auto bad = folder_.bad_samples();
    int64_t all = 0;
    for (const auto& part : folder_.notes().parts) all += part.samples;
    if (bad == all)
      throw Error(
          ErrorKind::data, "--out " + options_.out, fmt::format("none of {} samples decoded", all),
          "mend the data (`ditto data verify RECIPE` lists every bad sample), and encode it into another folder");
    folder_.finish();
    return bad;
  }

  // The shards that are not there, the same on all ranks.
  std::vector<const Shard*> prepare() {
    const auto& shards = folder_.shards();
    std::vector<uint8_t> there(shards.size(), 0);
    if (mesh_.rank() == 0) there = folder_.prepare();
    if (mesh_.world_size() > 1)
      mesh_.world().broadcast(torch::from_blob(there.data(), {static_cast<int64_t>(there.size())}, torch::kByte), 0);
    std::vector<const Shard*> missing;
    int64_t all = 0, left = 0;
    for (size_t i = 0; i < shards.size(); ++i) {
      all += shards[i].samples;
      if (there[i]) continue;
      left += shards[i].samples;
      missing.push_back(&shards[i]);
    }
    if (mesh_.rank() == 0 && options_.begun) options_.begun(all - left, all);
    return missing;
  }

  int64_t batches_of(const Shard& shard) const { return (shard.samples + options_.batch - 1) / options_.batch; }

  Loader& loader_of(const Shard& shard) {
    const bool trains = shard.part->name == "train";
    auto& loader = trains ? train_ : validation_;
    if (loader) return *loader;
    auto options = assembly_.recipe.loader;
    options.shuffle = options.flip = false;
    const auto source = std::make_shared<InOrder>(trains ? assembly_.train_data : assembly_.validation_data);
    return loader.emplace(source, options, static_cast<uint64_t>(assembly_.recipe.run.seed), options_.say);
  }

  Places places(const Shard& shard, int64_t batch) const {
    const auto first = batch * options_.batch;
    return {shard.first + first, std::min(options_.batch, shard.samples - first)};
  }

  // Ranks that run encoders together run as many batches: those without one of their own repeat their last.
  void encode(const Shard& shard, bool is_own, int64_t batches) {
    std::optional<EncodedFolder::Writer> writer;
    if (is_own && writes_) writer.emplace(folder_, shard);
    auto& loader = loader_of(shard);
    const auto own = batches_of(shard);
    loader.expect(
        [&](int64_t k) -> std::optional<Places> { return k < own ? std::optional(places(shard, k)) : std::nullopt; });
    for (int64_t k = 0; k < batches; ++k) {
      if (options_.alive) options_.alive();
      const auto read = numbered(loader.next(places(shard, std::min(k, own - 1))), shard.part->first);
      const bool keeps = writer && k < own;
      if (options_.format == EncodeOptions::kNemo)
        encode_for_nemo(read, keeps ? &*writer : nullptr);
      else
        encode(read, keeps ? &*writer : nullptr);
      if (!is_own || k >= own) continue;
      done_ += read.size();
      if (options_.progress) options_.progress(done_);
    }
    loader.expect([](int64_t) { return std::optional<Places>(); });  // what it was asked for is gone
    if (writer) writer->finish();
  }

  Batch precomputed(const Batch& read) const {
    return assembly_.networks->precompute(read.to(assembly_.main->ctx->device)).to(torch::kCPU);
  }

  Batch mirrored(Batch read) const {
    return std::move(read).changed([&](Batch part) {
      for (const auto& spec : folder_.notes().source)
        if (turns(spec)) part.tensors.at(spec.name) = part.at(spec.name).flip(-1).contiguous();
      return part;
    });
  }

  static std::string name_of(const Batch& part, size_t row, const char* extension) {
    return encoded_key(part.ids[row]) + "." + extension;
  }

  void encode(const Batch& read, EncodedFolder::Writer* writer) const {
    const auto plain = precomputed(read);
    std::optional<Batch> turned;
    if (options_.flip) turned = precomputed(mirrored(read));
    if (!writer) return;
    const auto& notes = folder_.notes();
    size_t number = 0;
    for (const auto& part : plain) {
      const auto& data = read.begin()[number];
      const auto* other = turned ? turned->begin() + number : nullptr;
      ++number;
      for (size_t row = 0; row < part.ids.size(); ++row) {
        const bool is_bad = part.weights[row] == 0;  // nor will it decode in the set
        auto specs = notes.kept;
        specs.insert(specs.end(), notes.made.begin(), notes.made.end());
        writer->add(name_of(part, row, is_bad ? EncodedSet::kBad : EncodedSet::kPlain), member(part, data, specs, row));
        if (!other || is_bad) continue;
        TensorSpecs both;
        for (const auto& spec : notes.made)
          if (notes.turn.count(spec.name)) both.push_back(spec);
        writer->add(name_of(part, row, EncodedSet::kMirrored), member(*other, data, both, row));
      }
    }
  }

  // The sides of its samples that are their own, as own_sides has them.
  std::string sides_of(const Batch& data) const {
    SampleSize sides;
    for (const auto& spec : folder_.notes().source)
      for (size_t d = 0; d < spec.shape.size(); ++d)
        if (spec.shape[d] == kOwnSide) sides.push_back(data.at(spec.name).size(static_cast<int64_t>(d) + 1));
    return sides.empty() ? "" : to_text(sides);
  }

  std::string member(const Batch& part, const Batch& data, const TensorSpecs& specs, size_t row) const {
    NamedTensors tensors;
    formats::Metadata said{{EncodedSet::kId, id_}};
    if (const auto sides = sides_of(data); !sides.empty()) said[EncodedSet::kSides] = sides;
    for (const auto& spec : specs) {
      tensors[spec.name] = own_row(part, spec, static_cast<int64_t>(row)).to(spec.dtype);
      const auto known = part.lengths.find(spec.name);
      if (known != part.lengths.end() && find(folder_.notes().made, spec.name))
        said[EncodedSet::kLength + spec.name] = std::to_string(known->second.at(row));
    }
    return safetensors_member(tensors, std::move(said));
  }

  // NeMo's sets hold what the model sees: the latent, drawn where its encoder draws, and the text's embedding.
  void encode_for_nemo(const Batch& read, EncodedFolder::Writer* writer) const {
    const auto encoded =
        assembly_.networks->encode(read.to(assembly_.main->ctx->device), Phase::evaluate).to(torch::kCPU);
    if (!writer) return;
    size_t number = 0;
    for (const auto& part : encoded) {
      const auto& data = read.begin()[number++];
      for (size_t row = 0; row < part.ids.size(); ++row) {
        if (part.weights[row] == 0) continue;
        const auto at = static_cast<int64_t>(row);
        writer->add(name_of(part, row, "pth"), torch_member(part.at(names::kClean)[at]));
        if (nemo_text_) {
          TensorSpec any{*nemo_text_, torch::kFloat, {-1}};
          writer->add(name_of(part, row, "pickle"), numpy_member(own_row(part, any, at)));
        }
        writer->add(name_of(part, row, "json"), notes_for_nemo(data, row));
      }
    }
  }

  std::string notes_for_nemo(const Batch& data, size_t row) const {
    auto json = nlohmann::ordered_json::object();
    for (const auto& spec : folder_.notes().source) {
      if (is_text(spec))
        json[spec.name] = texts_of(data.at(spec.name)).at(row);
      else if (spec.shape.empty() && spec.dtype == torch::kLong)
        json[spec.name] = data.at(spec.name)[static_cast<int64_t>(row)].item<int64_t>();
    }
    return formats::ascii_json(json, -1);
  }

  Assembly& assembly_;
  const EncodeOptions& options_;
  const Mesh& mesh_;
  const bool writes_;
  EncodedFolder folder_;
  const std::optional<std::string> nemo_text_;
  const std::string id_;
  std::optional<Loader> train_, validation_;
  int64_t done_ = 0;
};

}  // namespace

int64_t encode_data(Assembly& assembly, const EncodeOptions& options) { return Encoding(assembly, options).run(); }

}  // namespace ditto
