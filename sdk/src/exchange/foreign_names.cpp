#include <ditto/exchange/foreign_names.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>

#include <torch/types.h>

#include <ditto/math/sizes.h>
#include <ditto/nn/conditions.h>

namespace ditto {

namespace {

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts{""};
  for (const char c : text)
    if (c == at)
      parts.emplace_back();
    else
      parts.back() += c;
  return parts;
}

std::string with_number(std::string name, int64_t number) {
  if (const auto at = name.find('#'); at != std::string::npos) name.replace(at, 1, std::to_string(number));
  return name;
}

// Ours, and theirs.
using Lines = std::vector<std::pair<std::string, std::vector<std::string>>>;
Lines lines_of(const std::string& list) {
  Lines lines;
  std::istringstream words(list);
  for (std::string word; words >> word;) {
    const auto at = word.find('=');
    if (at == std::string::npos)
      throw Error(ErrorKind::plugin, "a list of foreign names", "has no \"=\" in \"" + word + "\"",
                  "write \"OURS=THEIRS\"");
    lines.emplace_back(word.substr(0, at), split(word.substr(at + 1), '+'));
  }
  return lines;
}

// Each line as one of a module, too.
Lines lines_of(const std::string& list, const std::string& parts) {
  const auto of_parts = lines_of(parts);
  auto lines = lines_of(list);
  for (size_t i = 0, count = lines.size(); i < count; ++i)
    for (const auto& [part, names] : of_parts) {
      auto& [ours, theirs] = lines.emplace_back(lines[i].first + "." + part, names);
      for (auto& name : theirs) name = lines[i].second.front() + "." + name;
    }
  return lines;
}

// Whether a parameter is `name`, or the weight or the bias of that layer.
bool is_of(const std::string& parameter, const std::string& name) {
  const auto at = name.find('#');
  if (at == std::string::npos) return parameter == name || parameter == name + ".weight" || parameter == name + ".bias";
  auto end = at;
  while (end < parameter.size() && parameter[end] >= '0' && parameter[end] <= '9') ++end;
  return end > at && is_of(parameter, name.substr(0, at) + parameter.substr(at, end - at) + name.substr(at + 1));
}

std::string joined(const std::vector<std::string>& names) {
  std::string list;
  for (const auto& name : names) list += (list.empty() ? "" : ", ") + name;
  return list;
}

const OptionValue& value_of(const OptionReader& reader, const std::string& name) {
  const auto& list = reader.declared();
  const auto at = std::find_if(list.begin(), list.end(), [&](const OptionInfo& info) { return info.name == name; });
  if (at != list.end()) return at->value;
  throw Error(ErrorKind::plugin, "option \"" + name + "\"", "is what a file says, and is not declared",
              "name a declared option in read_over");
}

}  // namespace

ForeignNames::ForeignNames(const Units& model, const std::string& parts) : parts_(parts) {
  for (const auto& item : model.named_parameters())
    parameters_[item.key()] = item.value().dim() > 0 ? item.value().size(0) : 1;
}

void ForeignNames::layers(const std::string& ours, const std::string& theirs, const std::string& list) {
  for (const auto& [layer, names] : lines_of(list, parts_))
    for (const std::string end : {"", ".weight", ".bias"}) {
      ForeignTensor tensor{ours + layer + end, {}, {}, {}};
      if (parameters_.count(tensor.ours) == 0) continue;
      for (const auto& name : names) tensor.theirs.push_back(theirs + name + end);
      format.tensors.push_back(std::move(tensor));
    }
}

void ForeignNames::blocks(int64_t count, const std::string& ours, const std::string& theirs, const std::string& list,
                          int64_t first, int64_t step) {
  for (int64_t i = 0; i < count; ++i) layers(with_number(ours, first + i * step), with_number(theirs, i), list);
}

void ForeignNames::shape(const std::string& ours, const std::vector<int64_t>& shape) {
  for (auto& tensor : format.tensors)
    if (is_of(tensor.ours, ours))
      tensor.shape = tensor.ours.ends_with(".bias") ? std::vector<int64_t>{shape.at(0)} : shape;
}

void ForeignNames::rows(const std::string& ours, const std::vector<int64_t>& rows) {
  for (auto& tensor : format.tensors)
    if (is_of(tensor.ours, ours)) tensor.rows = rows;
}

void ForeignNames::turn_pairs(const std::string& ours, int64_t head_width) {
  for (auto& tensor : format.tensors) {
    const int64_t count = parameters_.at(tensor.ours), values = count / 3;
    if (is_of(tensor.ours, ours + ".qkv"))
      tensor.rows = foreign_rows({{0, count - values, head_width}, {count - values, values}});
    if (is_of(tensor.ours, ours + ".q_norm") || is_of(tensor.ours, ours + ".k_norm"))
      tensor.rows = foreign_rows({{0, count, head_width}});
  }
}

void ForeignNames::table(const std::string& theirs, const torch::Tensor& table_TD) {
  format.constants[theirs] = table_TD.to(torch::kFloat).unsqueeze(0);
}

void ForeignNames::copies(int64_t count, const std::string& theirs) {
  const auto first = with_number(theirs, 0);
  for (const auto& tensor : format.tensors)
    for (const auto& name : tensor.theirs)
      for (int64_t i = 1; i < count && name.starts_with(first); ++i)
        format.copies[with_number(theirs, i) + name.substr(first.size())] = name;
}

std::string foreign_name(const std::string& list, const std::string& ours, const std::string& parts) {
  for (const auto& [layer, names] : lines_of(list, parts))
    for (const std::string end : {"", ".weight", ".bias"})
      if (ours == layer + end) return names.front() + end;
  return {};
}

std::vector<int64_t> foreign_rows(const std::vector<ForeignRun>& runs) {
  std::vector<int64_t> rows;
  for (const auto& run : runs)
    for (int64_t i = 0; i < run.count; ++i) {
      const int64_t at = run.head > 0 ? i % run.head : 0, half = run.head / 2;
      rows.push_back(run.first + (run.head == 0 ? i : i - at + (at < half ? 2 * at : 2 * (at - half) + 1)));
    }
  return rows;
}

std::vector<int64_t> megatron_rows(const std::vector<int64_t>& heads, int64_t groups, int64_t K) {
  const int64_t all = std::accumulate(heads.begin(), heads.end(), int64_t{0});
  std::vector<int64_t> rows;
  int64_t before = 0;
  for (const int64_t some : heads) {
    for (int64_t group = 0; group < groups; ++group)
      for (int64_t row = 0; row < some * K; ++row) rows.push_back((group * all + before) * K + row);
    before += some;
  }
  return rows;
}

std::vector<std::string> formats_of(const std::vector<std::string>& known, const NotTheirs& not_theirs) {
  std::vector<std::string> list;
  for (const auto& format : known)
    if (not_theirs(format).empty()) list.push_back(format);
  return list;
}

void require_format(const std::string& format, const std::vector<std::string>& known, const NotTheirs& not_theirs) {
  if (std::find(known.begin(), known.end(), format) == known.end())
    throw Error(ErrorKind::config, "checkpoint format", "this model has no format \"" + format + "\"",
                "it has: " + joined(known));
  const auto why = not_theirs ? not_theirs(format) : "";
  if (why.empty()) return;
  const auto others = formats_of(known, not_theirs);
  throw Error(ErrorKind::config, "checkpoint format \"" + format + "\"", why,
              others.empty() ? "keep it as a checkpoint of Ditto" : "use --format " + joined(others));
}

ModelNeeds foreign_needs_of(std::vector<int64_t> x, int64_t out_channels) {
  return {{{"x", torch::kFloat, std::move(x), ""}, {"t", torch::kFloat, {}, ""}}, out_channels};
}

void refuse_tensor(const ForeignShapes& file, const std::string& tensor, const std::string& what) {
  throw Error(ErrorKind::checkpoint, file.file, "tensor '" + tensor + "' " + what, "choose another file");
}

ForeignPatches patches_of(const ForeignShapes& file, const std::string& tensor) {
  const int64_t width = file.size(tensor, 0, most::kWidth);
  if (width % 4 != 0) refuse_tensor(file, tensor, "makes tokens of a width that is no multiple of 4");
  const bool is_video = file.tensors.at(tensor).size() == 5;
  const size_t rows = is_video ? 3 : 2;
  const int64_t side = file.size(tensor, rows, most::kPatch);
  if (file.size(tensor, rows + 1, most::kPatch) != side) refuse_tensor(file, tensor, "is of no square patches");
  return {width, file.size(tensor, 1, most::kNumbers), side, is_video ? file.size(tensor, 2, most::kPatch) : 1};
}

int64_t rows_of(const ForeignShapes& file, const std::string& tensor, int64_t width, int64_t most) {
  if (file.size(tensor, 1, most::kWidth) != width) refuse_tensor(file, tensor, "is not as wide as a token");
  return file.size(tensor, 0, most);
}

int64_t square_of(const ForeignShapes& file, const std::string& table, int64_t width, int64_t extras) {
  const int64_t tokens = file.size(table, 1, most::kNumbers) - extras;
  const auto rows = static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(std::max<int64_t>(tokens, 0)))));
  if (rows < 1 || rows * rows != tokens || file.size(table, 2, most::kWidth) != width)
    refuse_tensor(file, table, "is not of the tokens of a square picture");
  return rows;
}

ForeignSizes::ForeignSizes(const ForeignShapes& file, const Names& at) {
  const auto patches = patches_of(file, at.patches);
  const int64_t width = size.width = patches.width;
  size.heads = 0;
  size.patch = patches.side, size.patch_frames = patches.frames, channels = patches.channels;
  size.depth = file.count(at.block, at.up, most::kBlocks);
  const int64_t hidden = rows_of(file, at.block + "0" + at.up, width, most::kMlpRatio * width);
  size.mlp_ratio = std::max<int64_t>(1, hidden / width);
  const int64_t outputs = rows_of(file, at.out, width, most::kNumbers);
  out_channels = std::max<int64_t>(1, outputs / (size.patch_frames * size.patch * size.patch));
  if (file.has(at.classes)) classes = rows_of(file, at.classes, width, most::kClasses + 1) - 1;
}

ModelNeeds ForeignSizes::needs(int64_t side, int64_t frames) const {
  std::vector<int64_t> x{channels, side, side};
  if (frames > 0) x.insert(x.begin() + 1, frames);
  auto made = foreign_needs_of(x, out_channels);
  if (classes > 0) made.inputs.push_back({"label", torch::kLong, {}, "", classes});
  return made;
}

NemoSizes::NemoSizes(const ForeignShapes& file, const std::string& attention) {
  const std::string layer = "decoder.layers.0.", own = layer + attention + ".", qkv = own + "linear_qkv.weight",
                    text = layer + "cross_attention.linear_kv.weight", places = "pos_embedder.emb_";
  width = file.size("x_embedder.weight", 0, most::kWidth);
  depth = file.count("decoder.layers.", "." + attention + ".linear_qkv.weight", most::kBlocks);
  if (file.has(own + "q_layernorm.weight")) {
    const int64_t head = file.size(own + "q_layernorm.weight", 0, width);
    heads = width / head;
    const int64_t all = rows_of(file, qkv, width, 3 * most::kWidth) / head;
    if (width % head != 0 || all <= heads || (all - heads) % 2 != 0)
      refuse_tensor(file, qkv, "is not of whole heads of " + std::to_string(head) + " numbers");
    if (all != 3 * heads) kv_heads = (all - heads) / 2;
  }
  hidden = rows_of(file, layer + "mlp.linear_fc1.weight", width, most::kMlpRatio * most::kWidth);
  if (file.has(text)) text_width = file.size(text, 1, most::kWidth);
  if (!file.has(places + "t.weight")) return;
  frames = file.size(places + "t.weight", 0, most::kSide);
  side = file.size(places + "h.weight", 0, most::kSide);
}

ModelNeeds NemoSizes::needs(const ForeignShapes& file, int64_t patch) const {
  const auto channels = [&](const std::string& tensor, size_t dim) {
    const int64_t numbers = file.size(tensor, dim, most::kNumbers);
    if (numbers % (patch * patch) != 0)
      refuse_tensor(file, tensor, "is of no patches of side " + std::to_string(patch));
    return numbers / (patch * patch);
  };
  const std::vector<int64_t> x{channels("x_embedder.weight", 1), kOwnSide, kOwnSide, kOwnSide};
  auto made = foreign_needs_of(x, channels("final_layer_linear.weight", 0));
  if (text_width > 0) offer_text(made, text_width, /*and_empty=*/false);
  return made;
}

int64_t published_heads(const std::vector<TransformerSize>& published, const TransformerSize& size) {
  for (const auto& one : published)
    if (one.depth == size.depth && one.width == size.width) return one.heads;
  return 0;
}

ForeignConfig diffusers_config(const std::string& class_name, const TransformerSize& size, int64_t channels,
                               int64_t out_channels, int64_t side) {
  return {{"_class_name", class_name},
          {"num_attention_heads", size.heads},
          {"attention_head_dim", size.width / size.heads},
          {"in_channels", channels},
          {"out_channels", out_channels},
          {"num_layers", size.depth},
          {"sample_size", side},
          {"patch_size", size.patch},
          {"attention_bias", true},
          {"activation_fn", "gelu-approximate"},
          {"norm_elementwise_affine", false}};
}

int64_t heads_of(const ForeignShapes& file, const std::string& key, int64_t width) {
  const int64_t heads = file.number(key, most::kHeads);
  if (width % heads == 0) return heads;
  throw Error(
      ErrorKind::checkpoint, file.config_file,
      "\"" + key + "\" is " + std::to_string(heads) + ", which does not divide tokens of " + std::to_string(width),
      "take the config.json of this model");
}

double real_of(const ForeignShapes& file, const std::string& key) {
  if (const auto found = file.config.find(key); found != file.config.end()) {
    if (const auto* real = std::get_if<double>(&found->second)) return *real;
    if (const auto* whole = std::get_if<int64_t>(&found->second)) return static_cast<double>(*whole);
  }
  throw Error(ErrorKind::checkpoint, file.config_file.empty() ? file.file : file.config_file,
              "does not say the number \"" + key + "\"", "take the config.json of this model");
}

OptionValue number_of(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15) return static_cast<int64_t>(value);
  return value;
}

void expect_config(const ForeignShapes& file, const ForeignConfig& expected) {
  for (const auto& [key, value] : expected)
    if (key != "_class_name") file.expect(key, value);
}

void refuse_other(const OptionReader& reader, const ForeignShapes& file, const std::string& option,
                  const OptionValue& said, const OptionValue& found) {
  if (said != found)
    reader.reject(option,
                  "is " + to_text(said) + ", and of the weights in " + file.file +
                      (file.format.empty() ? "" : " (format " + file.format + ")") + " it is " + to_text(found),
                  "leave it out, or choose another file or format");
}

void refuse_others(const OptionReader& reader, const OptionReader& theirs, const ForeignShapes& file,
                   const std::vector<std::string>& names) {
  for (const auto& name : names) refuse_other(reader, file, name, value_of(reader, name), value_of(theirs, name));
}

void require_heads(const OptionReader& reader, const ForeignShapes& file) {
  const auto& declared = reader.declared();
  const bool said = std::any_of(declared.begin(), declared.end(), [](const OptionInfo& info) {
    return info.given && (info.name == "heads" || info.name == "preset");
  });
  if (!said)
    reader.reject("heads", "is not said, and " + file.file + " does not say it",
                  "add it to the recipe, or --set model.heads=N");
}

}  // namespace ditto
