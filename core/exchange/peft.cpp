#include "core/exchange/peft.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include <torch/types.h>

#include <ditto/text.h>

#include "core/checkpoint/tensor_file.h"
#include "core/exchange/peft_targets.h"
#include "core/formats/file.h"
#include "core/formats/output_folder.h"
#include "core/formats/text/json.h"

namespace ditto::checkpoint {

namespace fs = std::filesystem;
using torch::Tensor;

namespace {

constexpr const char *kConfig = "adapter_config.json", *kWeights = "adapter_model.safetensors",
                     *kOlderWeights = "adapter_model.bin", *kPrefix = "base_model.model.", *kWeight = ".weight",
                     *kA = ".lora_A.weight", *kB = ".lora_B.weight", *kFormatNote = "ditto.format";
constexpr uint64_t kMostConfig = uint64_t{1} << 20;

// What of a configuration says nothing of what the terms in the file compute: whose they are, which layers were chosen,
// what their training and their first values were made of. Anything else is refused by its name unless it is off: what
// a later peft adds may change everything. (tests/golden/adapters: what peft 0.21 makes of each.)
constexpr std::array<std::string_view, 18> kOfNoEffect{"peft_type",       "r",
                                                       "lora_alpha",      "task_type",
                                                       "auto_mapping",    "base_model_name_or_path",
                                                       "revision",        "inference_mode",
                                                       "peft_version",    "target_modules",
                                                       "exclude_modules", "layers_to_transform",
                                                       "layers_pattern",  "lora_dropout",
                                                       "megatron_core",   "qalora_group_size",
                                                       "runtime_config",  "eva_config"};
// First values that leave the model's own weights as they are.
constexpr std::array<std::string_view, 4> kPlainStarts{"gaussian", "eva", "orthogonal", "mica"};
// Of a file's metadata, what other programs say of how its terms are meant: kohya's, and diffusers'.
constexpr const char *kKohyaNote = "ss_", *kDiffusersNote = "lora_adapter_metadata";

bool is_off(const nlohmann::json& value) {
  return value.is_null() || value == false || (value.is_structured() && value.empty());
}

bool is_plain_start(const nlohmann::json& value) {
  return value.is_null() || value.is_boolean() ||
         (value.is_string() &&
          std::find(kPlainStarts.begin(), kPlainStarts.end(), value.get<std::string>()) != kPlainStarts.end());
}

std::string without(const std::string& name, std::string_view end) { return name.substr(0, name.size() - end.size()); }

std::string weights_in(const std::string& folder) {
  const auto path = fs::path(folder) / kWeights;
  std::error_code ignored;
  return (fs::exists(path, ignored) ? path : fs::path(folder) / kOlderWeights).string();
}

// Each of our weights and what it is there, without ".weight".
struct Names {
  struct One {
    std::string ours;
    std::vector<std::string> theirs;
    std::vector<int64_t> shape;  // theirs, if not ours
    std::vector<int64_t> rows;   // of theirs, for each of ours; empty: as they come
  };
  std::vector<One> layers;
  std::map<std::string, std::string> copies;  // of theirs
};

Names names_of(const Units& of, const std::string& format) {
  Names names;
  if (format.empty()) {
    for (const auto& item : of.named_parameters())
      if (item.key().ends_with(kWeight) && !item.key().ends_with(kA) && !item.key().ends_with(kB))
        names.layers.push_back({without(item.key(), kWeight), {without(item.key(), kWeight)}, {}, {}});
    return names;
  }
  const auto theirs = of.foreign(format);
  std::set<std::string> seen;
  for (const auto& tensor : theirs.tensors) {
    if (!tensor.ours.ends_with(kWeight)) continue;
    Names::One one{without(tensor.ours, kWeight), {}, tensor.shape, tensor.rows};
    for (const auto& name : tensor.theirs) {
      one.theirs.push_back(name.ends_with(kWeight) ? without(name, kWeight) : name);
      if (!seen.insert(name).second)
        throw Error(
            ErrorKind::config, "format " + format,
            "has as one layer '" + one.theirs.back() + "' what are several here, and an adapter has terms of each",
            "use another format, or none: layers are then called as they are here");
    }
    names.layers.push_back(std::move(one));
  }
  for (const auto& [copy, original] : theirs.copies)
    if (copy.ends_with(kWeight)) names.copies[without(copy, kWeight)] = without(original, kWeight);
  return names;
}

}  // namespace

bool is_peft(const std::string& path) {
  std::error_code ignored;
  return fs::exists(fs::path(path) / kConfig, ignored);
}

std::string adapter_in_file(const std::string& file) {
  const auto some = [](const std::vector<std::string>& names, std::initializer_list<std::string_view> words) {
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return std::any_of(words.begin(), words.end(), [&](auto word) { return name.find(word) != name.npos; });
    });
  };
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored)) return {};
  try {
    const auto names = open_foreign(file)->names();
    if (some(names, {".lora_down.", ".lora_up."})) return "an adapter in one file, as kohya's scripts write it";
    if (some(names, {".lora_A.", ".lora_B.", ".lora.down.", ".lora.up.", "_lora.down.", "_lora.up."}))
      return "an adapter in one file, as diffusers writes it";
    if (some(names, {".hada_w", ".lokr_w"})) return "an adapter of LyCORIS";
  } catch (const Error&) {  // no file of tensors
  }
  return {};
}

void refuse_one_file(const std::string& path) {
  std::error_code ignored;
  auto file = fs::path(path);
  if (fs::is_directory(path, ignored))
    for (const char* name : {"pytorch_lora_weights.safetensors", "pytorch_lora_weights.bin"})
      if (fs::exists(file / name, ignored)) file /= name;
  if (!fs::exists(file, ignored) || fs::is_directory(file, ignored)) return;
  const auto refuse = [&](const std::string& what, const std::string& remedy) {
    throw Error(ErrorKind::checkpoint, path, what, remedy);
  };
  const auto folder = file.parent_path();
  if (const auto name = file.filename();
      (name == kConfig || name == kWeights || name == kOlderWeights) && is_peft(folder))
    refuse("is a file of an adapter of peft's", "name its folder, " + (folder.empty() ? "." : folder.string()));
  const auto kind = adapter_in_file(file);
  refuse(
      (file == path ? "is a file" : "holds " + file.filename().string()) + (kind.empty() ? "" : ", " + kind) +
          ": adapters are read as folders of peft's, " + kConfig + " beside " + kWeights,
      "save it as such a folder in the program it is from (peft's save_pretrained), or merge it into its model there "
      "and import that");
}

std::string reading_of_peft(const std::string& folder) {
  std::error_code ignored;
  const bool are_two =
      fs::exists(fs::path(folder) / kWeights, ignored) && fs::exists(fs::path(folder) / kOlderWeights, ignored);
  return are_two ? "reads " + shown(weights_in(folder)) + ", and not " + kOlderWeights : "";
}

std::string fingerprint_of_peft(const std::string& folder) { return fingerprint(*open_foreign(weights_in(folder))); }

void Peft::refuse(const std::string& what, const std::string& remedy) const {
  throw Error(ErrorKind::checkpoint, folder_, what, remedy);
}

Peft::Peft(const Units& of, std::string format, const std::string& folder) : folder_(folder) {
  read_config((fs::path(folder) / kConfig).string());
  file_ = open_foreign(weights_in(folder));
  const auto notes = file_->notes();
  for (const auto& [key, value] : notes)
    if (key.starts_with(kKohyaNote) || key.ends_with(kDiffusersNote))
      refuse("has a file of weights with the metadata " + shown(key) + ", which is of an adapter in one file",
             "take the folder as peft's save_pretrained wrote it");
  if (const auto noted = notes.find(kFormatNote); format.empty() && noted != notes.end()) format = noted->second;
  find_layers(of, format);
  int64_t most = 1;
  for (const auto& [ours, parts] : parts_) {
    names_.push_back(ours);
    if (!share_first_map(parts)) most = std::max(most, static_cast<int64_t>(parts.size()));
  }
  rank_ = most * their_rank_;
  alpha_ = static_cast<double>(most) * their_alpha_;
}

// What is not read here would change what the adapter computes.
void Peft::read_config(const std::string& path) {
  config_ =
      formats::parse_json(formats::read_file(path, ErrorKind::checkpoint, kMostConfig), path, ErrorKind::checkpoint);
  const auto& config = config_;
  if (!config.is_object() || !config.contains("peft_type") || config["peft_type"] != "LORA" || !config.contains("r") ||
      !config["r"].is_number_integer() || !config.contains("lora_alpha") || !config["lora_alpha"].is_number())
    refuse("has an " + std::string(kConfig) + " that is not of LoRA, with r and lora_alpha",
           "use an adapter of peft's LoRA");
  const auto refuse_value = [&](const std::string& key, const nlohmann::json& value, const char* why) {
    refuse("says " + shown(key) + " = " + shown(formats::ascii_json(value, -1)) + ", " + why,
           "merge it into its model there (merge_and_unload), and import that");
  };
  for (const auto& [key, value] : config.items()) {
    if (std::find(kOfNoEffect.begin(), kOfNoEffect.end(), key) != kOfNoEffect.end()) continue;
    if (key == "init_lora_weights") {
      if (!is_plain_start(value))
        refuse_value(key, value, "which is not known to leave the model's own weights as they are");
    } else if (!is_off(value) && !(key == "bias" && value == "none")) {
      refuse_value(key, value, "which an adapter here cannot have");
    }
  }
  their_rank_ = config["r"].get<int64_t>();
  their_alpha_ = config["lora_alpha"].get<double>();
  if (their_rank_ < 1 || their_rank_ > (1 << 16)) refuse("has a rank of " + std::to_string(their_rank_), "use another");
}

void Peft::find_layers(const Units& of, const std::string& format) {
  const auto names = names_of(of, format);
  std::map<std::string, std::pair<const Names::One*, int64_t>> known;
  std::vector<std::string> list;
  for (const auto& one : names.layers)
    for (size_t i = 0; i < one.theirs.size(); ++i) {
      known[one.theirs[i]] = {&one, static_cast<int64_t>(i)};
      list.push_back(one.theirs[i]);
    }
  for (const auto& name : file_->names()) {
    if (!name.starts_with(kPrefix) || (!name.ends_with(kA) && !name.ends_with(kB)))
      refuse("holds '" + name + "', which is no map of a layer's term", "use an adapter of peft's LoRA alone");
    const auto whole = without(name, name.ends_with(kA) ? kA : kB);
    const auto theirs = whole.substr(std::string_view(kPrefix).size());
    const auto other = whole + (name.ends_with(kA) ? kB : kA);
    if (!file_->has(other)) refuse("holds '" + name + "' without '" + other + "'", "use a whole one");
    if (!name.ends_with(kA)) continue;
    if (const auto copy = names.copies.find(theirs); copy != names.copies.end()) {
      const auto original = kPrefix + copy->second;
      for (const char* map : {kA, kB})
        if (!file_->has(original + map) || !torch::equal(file_->read(original + map), file_->read(whole + map)))
          refuse("adapts '" + theirs + "' otherwise than '" + copy->second + "', of which this model has one for both",
                 "merge it into its model there, and import that");
      continue;
    }
    const auto at = known.find(theirs);
    if (at == known.end()) {
      const auto near = nearest(theirs, list);
      refuse(
          "adapts '" + theirs + "', which the model does not have" +
              (near.empty() ? "" : " (the nearest name is '" + near + "')"),
          format.empty() ? "say how it names layers: adapter.format" : "is adapter.format = \"" + format + "\" right?");
    }
    if (!peft_reads(config_, theirs, folder_))
      refuse("adapts '" + theirs + "', which its " + kConfig +
                 " leaves out (target_modules, exclude_modules, layers_to_transform): peft would not read it",
             "take file and configuration as peft's save_pretrained wrote them");
    const auto& [one, index] = at->second;
    parts_[one->ours].push_back({whole, index, static_cast<int64_t>(one->theirs.size())});
    rows_[one->ours] = one->rows;
  }
  if (parts_.empty()) refuse("holds no term of any layer", "use another");
}

bool Peft::share_first_map(const std::vector<Part>& parts) const {
  const auto first = map(parts.front(), kA);
  return std::all_of(parts.begin() + 1, parts.end(),
                     [&](const Part& part) { return torch::equal(map(part, kA), first); });
}

// Of a convolution as of the linear map that it is.
Tensor Peft::map(const Part& part, const char* which) const {
  const auto found = file_->read(part.name + which);
  const int64_t dim = which == kA ? 0 : 1;
  if (found.dim() < 2 || found.size(dim) != their_rank_)
    refuse("'" + part.name + which + "' is " + c10::str(found.sizes()) + ", and its configuration says rank " +
               std::to_string(their_rank_),
           "use an adapter with one rank");
  return found.flatten(1);
}

void Peft::read_into(Layout& layout, int64_t rank, double factor) const {
  torch::NoGradGuard no_grad;
  if (rank < rank_)
    refuse("needs a rank of " + std::to_string(rank_) + " in this model, and adapter.rank is " + std::to_string(rank),
           "leave adapter.rank out: it is that of the weights");
  const double scale = their_alpha_ / static_cast<double>(their_rank_) / factor;
  for (auto& entry : layout.entries) {
    const bool is_a = entry.name.ends_with(kA);
    const auto& parts = parts_.at(without(entry.name, is_a ? kA : kB));
    const bool shared = share_first_map(parts);
    auto whole = torch::zeros(entry.full_shape, torch::kDouble);
    for (size_t i = 0; i < parts.size(); ++i) {
      const int64_t first = shared ? 0 : static_cast<int64_t>(i) * their_rank_;
      const auto theirs = map(parts[i], is_a ? kA : kB).to(torch::kDouble);
      const int64_t rows = is_a ? their_rank_ : entry.full_shape[0] / parts[i].count;
      auto place = is_a ? whole.narrow(0, first, rows)
                        : whole.narrow(0, parts[i].index * rows, rows).narrow(1, first, their_rank_);
      if (place.sizes() != theirs.sizes())
        refuse("'" + parts[i].name + (is_a ? kA : kB) + "' is " + c10::str(theirs.sizes()) + ", and here it is " +
                   c10::str(place.sizes()),
               "use an adapter of this model");
      place.copy_(is_a ? theirs : theirs * scale);
    }
    if (const auto& rows = rows_.at(without(entry.name, is_a ? kA : kB)); !is_a && !rows.empty())
      whole = whole.index_select(0, torch::tensor(rows, torch::kLong));
    for (const auto& block : entry.slices()) {
      auto target = entry.tensor.detach(), from = whole;
      for (size_t d = 0; d < block.size.size(); ++d) {
        const auto dim = static_cast<int64_t>(d);
        target = target.narrow(dim, block.local_start[d], block.size[d]);
        from = from.narrow(dim, block.global_start[d], block.size[d]);
      }
      target.copy_(from);
    }
  }
}

namespace {

// What peft makes the layers from: those that it leaves out have its defaults.
std::string config_text(int64_t rank, double alpha, const std::vector<std::string>& layers) {
  nlohmann::ordered_json config{{"peft_type", "LORA"},
                                {"task_type", nullptr},
                                {"base_model_name_or_path", nullptr},
                                {"inference_mode", true},
                                {"r", rank},
                                {"lora_alpha", alpha},
                                {"lora_dropout", 0.0},
                                {"bias", "none"},
                                {"fan_in_fan_out", false},
                                {"modules_to_save", nullptr},
                                {"use_rslora", false},
                                {"target_modules", layers}};
  if (alpha == std::floor(alpha)) config["lora_alpha"] = static_cast<int64_t>(alpha);
  return formats::ascii_json(config) + '\n';
}

}  // namespace

void export_peft(const Units& model, const std::string& format, const Layout& layout, double alpha,
                 const std::string& folder, const std::map<std::string, std::string>& notes) {
  torch::NoGradGuard no_grad;
  std::map<std::string, Tensor> terms;
  for (const auto& entry : layout.entries) terms[entry.name] = entry.tensor.detach();
  const auto names = names_of(model, format);
  NamedTensors out;
  std::vector<std::string> layers;
  int64_t rank = 0;
  const auto put = [&](const std::string& theirs, const Tensor& a, const Tensor& b) {
    out[kPrefix + theirs + kA] = a;
    out[kPrefix + theirs + kB] = b;
    layers.push_back(theirs);
  };
  for (const auto& one : names.layers) {
    const auto found = terms.find(one.ours + kA);
    if (found == terms.end()) continue;
    auto a = found->second;
    rank = a.size(0);
    auto all_of_b = terms.at(one.ours + kB);
    if (!one.rows.empty())
      all_of_b = torch::empty_like(all_of_b).index_copy_(0, torch::tensor(one.rows, torch::kLong), all_of_b);
    const auto b = all_of_b.chunk(static_cast<int64_t>(one.theirs.size()));
    auto of_b = b.front().sizes().vec();
    if (one.shape.size() > 2) {  // a convolution there
      auto of_a = one.shape;
      of_a[0] = rank;
      a = a.reshape(of_a);
      of_b.resize(one.shape.size(), 1);
    }
    for (size_t i = 0; i < one.theirs.size(); ++i) put(one.theirs[i], a, b[i].reshape(of_b).contiguous());
    terms.erase(one.ours + kA);
  }
  for (const auto& [name, tensor] : terms)
    if (name.ends_with(kA))
      throw Error(ErrorKind::config, "--format " + format,
                  "has no name for the layer \"" + without(name, kA) + "\", which the adapter is of",
                  "choose another format, or leave it out: layers are then called as they are here");
  for (const auto& [copy, original] : names.copies)
    if (const auto at = out.find(kPrefix + original + kA); at != out.end())
      put(copy, Tensor(at->second), Tensor(out.at(kPrefix + original + kB)));
  formats::make_output_folder(folder, "--out");
  formats::Metadata metadata(notes.begin(), notes.end());
  metadata["format"] = "pt";
  metadata[kFormatNote] = format;
  write_tensors((fs::path(folder) / kWeights).string(), out, metadata, ErrorKind::checkpoint, formats::Sync::fsync);
  const auto config = config_text(rank, alpha, layers);
  formats::write_file((fs::path(folder) / kConfig).string(), std::as_bytes(std::span(config)), ErrorKind::checkpoint,
                      formats::Sync::fsync);
}

}  // namespace ditto::checkpoint
