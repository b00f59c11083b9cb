#include "core/exchange/foreign.h"

#include <algorithm>
#include <array>

#include "core/exchange/foreign_file.h"
#include "core/exchange/foreign_folder.h"
#include "core/exchange/foreign_import.h"

namespace ditto::checkpoint {

namespace {

// Before the names of one model: wrappers that trainers leave there (torch's, JiT's), and the places that
// latent-diffusion, and after it programs of node graphs (https://docs.comfy.org), give a denoiser and its autoencoder
// in one file.
constexpr std::array<const char*, 2> kWrappers{"module.", "net."};
constexpr const char *kDenoiser = "model.diffusion_model.", *kAutoencoder = "first_stage_model.",
                     *kClassOfAutoencoders = "AutoencoderKL", *kLatentDiffusion = "ldm";
constexpr std::array<const char*, 5> kPrefixes{"", kWrappers[0], kWrappers[1], kDenoiser, kAutoencoder};
// What trainers call their sets in one file; JiT's script keeps two averages, of which it samples with the first.
constexpr const char *kAverage = "ema", *kFirstAverage = "model_ema1";

// What a format's program saves with a model and is no part of it: an import leaves it out, and says so.
struct Beside {
  const char *format, *beginning, *what;
};
constexpr std::array<Beside, 7> kBeside{{
    {"opendit", "y_embedder.text_encoder.", "the frozen text encoder"},
    {kLatentDiffusion, "loss.", "what judged its pictures in training"},
    {"transformers", "decoder.", "the decoder"},
    {"transformers", "lm_head.", "the decoder's last map"},
    {"transformers", "encoder.embed_tokens.", "the table of tokens once more"},
    {"transformers", "embeddings.position_ids", "the places' numbers"},
    {"transformers", "text_model.embeddings.position_ids", "the places' numbers"},
}};

// Of that, what is a tensor of the model once more, which a file may lack.
struct Twice {
  const char *format, *name, *of;
};
constexpr std::array<Twice, 1> kTwice{{{"transformers", "encoder.embed_tokens.weight", "shared.weight"}}};

// What of that a tensor is, for people; empty: it is of the model.
std::string beside(const std::string& format, const std::string& name) {
  for (const auto& one : kBeside)
    if (format == one.format && name.starts_with(one.beginning))
      return std::string(one.what) + " (" + one.beginning + "*)";
  return {};
}

ForeignFormat format_of(const Units& units, const std::string& name, const Entries& parameters) {
  ForeignFormat format;
  if (name.empty()) {
    for (const auto& item : parameters) format.tensors.push_back({item.first, {item.first}, {}});
    return format;
  }
  format = units.foreign(name);
  require_map(format, parameters, "format " + name);
  return format;
}

// Which names of the file are the weights: the prefix of a set, and of what stands before each of its names.
struct Choice {
  std::string set;     // "ema", "model", or ""
  std::string prefix;  // before every name
};

std::vector<std::string> sets_to_try(std::optional<Which> which) {
  if (which == Which::weights) return {"model", "state_dict", ""};
  if (which == Which::ema) return {kAverage, kFirstAverage};
  return {"", kAverage, kFirstAverage, "model", "state_dict"};
}

// The names of one set, where no name of it is known yet: a file of several has names of no other kind.
std::string prefix_of_set(const std::vector<std::string>& names, const Classes& classes, std::optional<Which> which) {
  const bool is_autoencoder = std::find(classes.begin(), classes.end(), kClassOfAutoencoders) != classes.end();
  const std::string model = is_autoencoder ? kAutoencoder : kDenoiser;
  const auto some = [&](const std::string& prefix) {
    return std::any_of(names.begin(), names.end(), [&](const auto& name) { return name.starts_with(prefix); });
  };
  if (some(model)) return model;
  std::string prefix;
  for (const std::string& set : sets_to_try(which))
    if (prefix.empty() && !set.empty() && some(set + ".")) prefix = set + ".";
  if (some(prefix + model)) return prefix + model;
  for (const std::string wrapper : kWrappers) {
    const bool wrapped = std::all_of(names.begin(), names.end(), [&](const auto& name) {
      return !name.starts_with(prefix) || name.starts_with(prefix + wrapper);
    });
    if (wrapped) return prefix + wrapper;
  }
  return prefix;
}

Choice choose(const ForeignFile& file, const ForeignFormat& format, std::optional<Which> which,
              const std::string& path) {
  const std::string& known_name = format.tensors.front().theirs.front();
  const auto former = format.former.find(known_name);
  const auto has = [&](const std::string& prefix) {
    return file.has(prefix + known_name) || (former != format.former.end() && file.has(prefix + former->second));
  };
  for (const std::string& set : sets_to_try(which))
    for (const std::string wrapper : kPrefixes)
      if (const std::string prefix = (set.empty() ? "" : set + ".") + wrapper; has(prefix)) return {set, prefix};
  const auto names = file.names();
  const std::string near = nearest(known_name, names);
  throw Error(
      ErrorKind::checkpoint, path,
      std::string("has no ") + (which == Which::ema ? "EMA in it: no 'ema." : "weights of this format: no tensor '") +
          known_name + "'" +
          (near.empty() ? names.empty() ? "; it holds no tensors" : ", but for example '" + names.front() + "'"
                        : " (the nearest name is '" + near + "')"),
      which == Which::ema ? "leave the choice open, or choose the weights" : "choose another format, or another file");
}

}  // namespace

ForeignWeights look_at_weights(const std::string& path, const std::string& format, std::optional<Which> which,
                               const Classes& classes) {
  const auto place = find_foreign_weights(path, classes);
  const std::string& weights = place.file;
  const auto file = open_foreign(weights);
  ForeignWeights found{{format, weights, {}, {}, {}}, file->notes(), {}, {}, reading_of(path, place)};
  const auto names = file->names();
  const std::string prefix = prefix_of_set(names, classes, which);
  for (const auto& name : names)
    if (!name.starts_with(prefix)) {
      if (prefix.ends_with(kDenoiser) || prefix.ends_with(kAutoencoder)) ++found.others[name.substr(0, name.find('.'))];
    } else if (const auto of = beside(format, name.substr(prefix.size())); !of.empty()) {
      ++found.others[of];
    } else {
      found.shapes.tensors[name.substr(prefix.size())] = file->shape(name);
    }
  found.config_text = read_config_beside(weights, found.shapes);
  return found;
}

std::string import_weights(const Units& of, const std::string& format_name, const std::string& given, Layout& layout,
                           std::optional<Which> which, const std::string& section) {
  const auto parameters = entries_of(layout);
  const auto format = format_of(of, format_name, parameters);
  const std::string path = foreign_weights(given);
  const auto file = open_foreign(path);
  const Choice choice = choose(*file, format, which, path);
  ForeignImport import(*file, path, choice.prefix, format.former);
  for (const ForeignTensor& tensor : format.tensors) import.parameter(tensor, *parameters.at(tensor.ours));
  for (const auto& [copy, original] : format.copies) import.copy(copy, original);
  for (const auto& [twice_format, name, of_name] : kTwice)
    if (format_name == twice_format && file->has(choice.prefix + name)) import.copy(name, of_name);
  for (const auto& [name, value] : format.constants) import.constant(name, value);
  const auto is_beside = [&](const std::string& name) { return !beside(format_name, name).empty(); };
  import.refuse_others(is_beside);
  import.finish(section);
  return choice.set;
}

std::string import_weights(Units& of, const std::string& format, const std::string& path, std::optional<Which> which) {
  auto layout = Layout::of(of);
  return import_weights(of, format, path, layout, which);
}

std::string fingerprint_of_weights(const std::string& path) {
  return fingerprint(*open_foreign(foreign_weights(path)));
}

}  // namespace ditto::checkpoint
