#include "core/checkpoint/foreign.h"

#include <algorithm>
#include <limits>
#include <set>

#include "core/checkpoint/foreign_file.h"
#include "core/checkpoint/foreign_folder.h"
#include "core/checkpoint/index.h"
#include "core/checkpoint/tensor_file.h"
#include "core/formats/nearest.h"

namespace ditto::checkpoint {

namespace {

constexpr size_t kNamedProblems = 3;

// Tables (sines, up to 1) that two programs computed in fp64 and rounded: a few units in the last place of fp32, or one
// of the file's type.
double constant_tolerance(at::ScalarType there) {
  if (there == at::kHalf) return std::numeric_limits<c10::Half>::epsilon();
  if (there == at::kBFloat16) return std::numeric_limits<c10::BFloat16>::epsilon();
  return 1e-5;
}

using Entries = std::map<std::string, const LayoutEntry*>;

Entries entries_of(const Layout& layout) {
  Entries entries;
  for (const auto& entry : layout.entries) entries[entry.name] = &entry;
  return entries;
}

void require_map(const ForeignFormat& format, const Entries& parameters, const std::string& where) {
  std::set<std::string> mapped;
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorKind::plugin, where, "the model's name map " + what, "correct its foreign()");
  };
  for (const ForeignTensor& tensor : format.tensors) {
    if (!parameters.count(tensor.ours)) fail("names '" + tensor.ours + "', which is no parameter");
    if (tensor.theirs.empty() || !mapped.insert(tensor.ours).second)
      fail("maps '" + tensor.ours + "' to nothing, or twice");
  }
  for (const auto& item : parameters)
    if (!mapped.count(item.first)) fail("lacks '" + item.first + "'");
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

// The shape of each of theirs: given, or ours, or an equal share of our rows.
Dims their_shape(const ForeignTensor& tensor, const Dims& ours, const std::string& where) {
  const auto parts = static_cast<int64_t>(tensor.theirs.size());
  Dims shape = tensor.shape.empty() ? ours : tensor.shape;
  if (tensor.shape.empty() && parts > 1 && !shape.empty()) shape[0] /= parts;
  if (numbers(shape) * parts != numbers(ours))
    throw Error(ErrorKind::plugin, where,
                "the model's name map gives '" + tensor.theirs.front() + "' a shape that does not make '" +
                    tensor.ours + "' of " + to_text(ours));
  return shape;
}

// Which names of the file are the weights: the prefix of a set, and of a wrapper that its trainer left in the names.
struct Choice {
  std::string set;     // "ema", "model", or ""
  std::string prefix;  // before every name
};

std::vector<std::string> sets_to_try(std::optional<Which> which) {
  if (which == Which::weights) return {"model", "state_dict", ""};
  if (which == Which::ema) return {"ema"};
  return {"", "ema", "model", "state_dict"};
}

// The names of one set, where no name of it is known yet: a file of several has names of no other kind.
std::string prefix_of_set(const std::vector<std::string>& names, std::optional<Which> which) {
  const auto some = [&](const std::string& prefix) {
    return std::any_of(names.begin(), names.end(), [&](const auto& name) { return name.starts_with(prefix); });
  };
  std::string prefix;
  for (const std::string& set : sets_to_try(which))
    if (prefix.empty() && !set.empty() && some(set + ".")) prefix = set + ".";
  const bool wrapped = std::all_of(names.begin(), names.end(), [&](const auto& name) {
    return !name.starts_with(prefix) || name.starts_with(prefix + "module.");
  });
  return wrapped ? prefix + "module." : prefix;
}

Choice choose(const ForeignFile& file, const std::string& known_name, std::optional<Which> which,
              const std::string& path) {
  for (const std::string& set : sets_to_try(which))
    for (const std::string wrapper : {"", "module."}) {
      const std::string prefix = (set.empty() ? "" : set + ".") + wrapper;
      if (file.has(prefix + known_name)) return {set, prefix};
    }
  const auto names = file.names();
  const std::string nearest = formats::nearest_name(known_name, names);
  throw Error(
      ErrorKind::checkpoint, path,
      std::string("has no ") + (which == Which::ema ? "EMA in it: no 'ema." : "weights of this format: no tensor '") +
          known_name + "'" +
          (nearest.empty() ? names.empty() ? "; it holds no tensors" : ", but for example '" + names.front() + "'"
                           : " (the nearest name is '" + nearest + "')"),
      which == Which::ema ? "leave the choice open, or choose the weights" : "choose another format, or another file");
}

// A block of a tensor that is made of others, one under another: numbers that lie together there are read at once.
torch::Tensor read_block(const ForeignFile& file, const std::vector<std::string>& parts, const Dims& shape,
                         const Rectangle& block, at::ScalarType dtype) {
  const int64_t in_part = numbers(shape) / static_cast<int64_t>(parts.size());
  auto values = torch::empty(block.size, torch::TensorOptions(dtype));
  size_t whole = shape.size();  // dims from here on are all there
  while (whole > 0 && block.size[whole - 1] == shape[whole - 1]) --whole;
  const int64_t inside = c10::multiply_integers(shape.begin() + static_cast<int64_t>(whole), shape.end());
  const int64_t run = whole > 0 ? block.size[whole - 1] * inside : inside;
  for (int64_t done = 0; done < values.numel(); done += run) {
    int64_t at = 0, stride = 1, rest = done;
    for (size_t d = shape.size(); d-- > 0;) {
      at += (block.global_start[d] + rest % block.size[d]) * stride;
      rest /= block.size[d];
      stride *= shape[d];
    }
    for (int64_t taken = 0; taken < run;) {
      const int64_t part = (at + taken) / in_part, first = (at + taken) % in_part;
      const int64_t count = std::min(run - taken, in_part - first);
      values.view(-1).narrow(0, done + taken, count).copy_(file.read(parts[static_cast<size_t>(part)], first, count));
      taken += count;
    }
  }
  return values;
}

// Checks everything first; fills the layout last.
class Import {
 public:
  Import(const ForeignFile& file, std::string path, Choice choice)
      : file_(file), path_(std::move(path)), choice_(std::move(choice)) {}

  void parameter(const ForeignTensor& tensor, const LayoutEntry& ours) {
    const Dims shape = their_shape(tensor, ours.full_shape, path_);
    Move move{&ours, {}};
    for (const std::string& name : tensor.theirs) {
      require(name, shape);
      move.parts.push_back(choice_.prefix + name);
    }
    moves_.push_back(std::move(move));
  }

  void copy(const std::string& name, const std::string& of) {
    if (!file_.has(choice_.prefix + of)) return;  // said already
    const auto original = file_.read(choice_.prefix + of);
    const auto value = take(name, original.sizes().vec());
    if (value && !torch::equal(*value, original))
      problem(name, "differs from '" + of + "', of which this model keeps one for both");
  }

  void constant(const std::string& name, const torch::Tensor& expected) {
    const auto value = take(name, expected.sizes().vec());
    if (!value) return;
    const double difference =
        (value->to(torch::kDouble) - expected.to(torch::kCPU, torch::kDouble)).abs().max().item<double>();
    if (!(difference <= constant_tolerance(value->scalar_type())))
      problem(name, "is a fixed table, and differs from this model's by " + std::to_string(difference));
  }

  void refuse_others() {
    for (const std::string& name : file_.names()) {
      if (!name.starts_with(choice_.prefix)) continue;
      const std::string rest = name.substr(choice_.prefix.size());
      if (!taken_.count(rest)) problem(rest, "has no place in this model");
    }
  }

  void finish(const std::string& section) {
    if (!problems_.empty()) {
      std::string text = "does not fit this model: ";
      for (size_t i = 0; i < std::min(problems_.size(), kNamedProblems); ++i)
        text += (i == 0 ? "" : ", ") + problems_[i];
      if (problems_.size() > kNamedProblems)
        text += ", and " + std::to_string(problems_.size() - kNamedProblems) + " more";
      throw Error(ErrorKind::checkpoint, path_, text, "check the recipe's [" + section + "] against the file");
    }
    torch::NoGradGuard no_grad;
    for (const auto& [entry, parts] : moves_)
      for (const auto& block : entry->slices()) {
        auto target = entry->tensor.detach();
        for (size_t d = 0; d < block.size.size(); ++d)
          target = target.narrow(static_cast<int64_t>(d), block.local_start[d], block.size[d]);
        target.copy_(read_block(file_, parts, entry->full_shape, block, target.scalar_type()));
      }
  }

 private:
  struct Move {
    const LayoutEntry* to;
    std::vector<std::string> parts;  // names there
  };

  bool require(const std::string& name, const Dims& shape) {
    const std::string there = choice_.prefix + name;
    taken_.insert(name);
    if (!file_.has(there)) {
      problem(name, "is missing");
      return false;
    }
    const Dims found = file_.shape(there);
    if (found != shape) problem(name, "is " + to_text(found) + " there and " + to_text(shape) + " here");
    return found == shape;
  }
  std::optional<torch::Tensor> take(const std::string& name, const Dims& shape) {
    if (!require(name, shape)) return std::nullopt;
    return file_.read(choice_.prefix + name);
  }
  void problem(const std::string& name, const std::string& what) {
    problems_.push_back("tensor '" + name + "' " + what);
  }

  const ForeignFile& file_;
  std::string path_;
  Choice choice_;
  std::vector<Move> moves_;
  std::vector<std::string> problems_;
  std::set<std::string> taken_;
};

}  // namespace

void export_weights(Model& model, const std::string& format_name, const std::string& out_path,
                    const std::map<std::string, std::string>& notes, const ForeignConfig& scheduler) {
  torch::NoGradGuard no_grad;
  const ForeignFormat format = model.foreign(format_name);
  const auto layout = Layout::of(model);
  const auto parameters = entries_of(layout);
  require_map(format, parameters, "format " + format_name);
  NamedTensors out;
  for (const ForeignTensor& tensor : format.tensors) {
    const auto ours = parameters.at(tensor.ours)->tensor.detach();
    const Dims shape = their_shape(tensor, parameters.at(tensor.ours)->full_shape, "format " + format_name);
    const auto parts = ours.reshape(-1).chunk(static_cast<int64_t>(tensor.theirs.size()));
    for (size_t i = 0; i < parts.size(); ++i) out[tensor.theirs[i]] = parts[i].reshape(shape);
  }
  for (const auto& [copy, of] : format.copies) {
    if (!out.count(of))
      throw Error(ErrorKind::plugin, "format " + format_name,
                  "the model's name map copies '" + of + "', which it does not write");
    out[copy] = out.at(of);
  }
  for (const auto& [name, value] : format.constants) out[name] = value;
  formats::Metadata metadata(notes.begin(), notes.end());
  metadata["format"] = "pt";  // Python readers of weights ask for it
  const ExportPlace place(out_path, format.config, scheduler);
  write_tensors(place.weights(), out, metadata, ErrorKind::checkpoint, formats::Sync::fsync);
  place.write_configs();
}

ForeignWeights look_at_weights(const std::string& path, const std::string& format, std::optional<Which> which) {
  const std::string weights = foreign_weights(path);
  const auto file = open_foreign(weights);
  ForeignWeights found{{format, weights, {}, {}, {}}, file->notes()};
  const auto names = file->names();
  const std::string prefix = prefix_of_set(names, which);
  for (const auto& name : names)
    if (name.starts_with(prefix)) found.shapes.tensors[name.substr(prefix.size())] = file->shape(name);
  read_config_beside(weights, found.shapes);
  return found;
}

std::string import_weights(const Units& of, const std::string& format_name, const std::string& given, Layout& layout,
                           std::optional<Which> which, const std::string& section) {
  const auto parameters = entries_of(layout);
  const auto format = format_of(of, format_name, parameters);
  const std::string path = foreign_weights(given);
  const auto file = open_foreign(path);
  const Choice choice = choose(*file, format.tensors.front().theirs.front(), which, path);
  Import import(*file, path, choice);
  for (const ForeignTensor& tensor : format.tensors) import.parameter(tensor, *parameters.at(tensor.ours));
  for (const auto& [copy, original] : format.copies) import.copy(copy, original);
  for (const auto& [name, value] : format.constants) import.constant(name, value);
  import.refuse_others();
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
