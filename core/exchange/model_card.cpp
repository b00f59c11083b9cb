#include "core/exchange/model_card.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>

#include <fmt/format.h>

#include <ditto/text.h>

#include "core/formats/file.h"
#include "core/formats/text/json.h"

namespace ditto::report {

namespace fs = std::filesystem;

namespace {

constexpr const char* kMark = "<!-- Written by `ditto checkpoint export`, which replaces it. -->";
constexpr uint64_t kMostCard = uint64_t{1} << 20, kMostPicture = uint64_t{256} << 20;

bool is_others(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return false;
  return fs::file_size(path, ignored) > kMostCard ||
         formats::read_file(path, ErrorKind::config).find(kMark) == std::string::npos;
}

// Where something lay on the machine that trained is nobody's business.
std::string without_folders(const std::string& toml) {
  static const std::regex folders("\"/[^\"\\n]*/");
  return std::regex_replace(toml, folders, "\"");
}

std::string cell(const std::string& text) {
  static const std::regex bar("[|]");
  return std::regex_replace(shown(text, kSentenceShown), bar, "\\|");
}

std::string yaml(const std::string& text) { return formats::ascii_json(nlohmann::json(text), -1); }

// A fence longer than any in the text.
std::string fenced(const std::string& text, const std::string& language) {
  std::string fence = "```";
  while (text.find(fence) != std::string::npos) fence += '`';
  return fence + language + "\n" + text + (text.ends_with('\n') ? "" : "\n") + fence + "\n";
}

}  // namespace

std::string to_markdown(const ModelCard& card, const std::string& picture_name) {
  std::string text = "---\nlicense: " + yaml(card.license.empty() ? "unknown" : card.license) + "\n";
  if (!card.library.empty()) text += "library_name: " + card.library + "\n";
  text += "tags:\n- ditto\n- diffusion\n- " + yaml(card.plugin) + "\n---\n\n" + kMark + "\n\n";
  text += fmt::format("# {}\n\n", shown(card.run));
  if (card.picture) text += fmt::format("![samples]({})\n\n", picture_name);
  text += "| | |\n|---|---|\n";
  const auto row = [&](const char* name, const std::string& value) {
    text += fmt::format("| {} | {} |\n", name, cell(value));
  };
  row("model", fmt::format("`{}`, {} numbers", card.plugin, card.parameters));
  row("weights",
      fmt::format("{} of step {}, as `{}`", card.weights == "ema" ? "average" : "those", card.step, card.format));
  row("samples learned from", std::to_string(card.samples));
  row("data", card.data.empty() ? "not known: the weights were imported" : card.data);
  row("license", card.license.empty() ? "nobody has said; that of the data counts" : card.license);
  text += "\n## Recipe\n\n" + fenced(without_folders(card.recipe_toml), "toml");
  return text;
}

bool write_card(const ModelCard& card, const std::string& path) {
  if (is_others(path)) return false;
  std::string name;
  if (card.picture) {
    const auto place = fs::path(path);
    name = (place.stem() == "README" ? std::string("samples") : place.stem().string() + "-samples") +
           fs::path(*card.picture).extension().string();
    const auto bytes = formats::read_file(*card.picture, ErrorKind::config, kMostPicture);
    formats::write_file((place.parent_path() / name).string(), std::as_bytes(std::span(bytes)), ErrorKind::config);
  }
  const auto text = to_markdown(card, name);
  formats::write_file(path, std::as_bytes(std::span(text)), ErrorKind::config);
  return true;
}

std::optional<std::string> sheet_of(const std::string& checkpoint, int64_t step) {
  const auto checkpoints = fs::path(checkpoint).lexically_normal().parent_path();
  if (checkpoints.filename() != "checkpoints") return std::nullopt;
  const auto run = checkpoints.parent_path();
  std::optional<std::string> newest;
  std::error_code ignored;
  const std::string last = fmt::format("step_{:08}", step);
  for (const auto& file : fs::directory_iterator(run / "samples", ignored)) {
    const auto name = file.path().stem().string();
    const bool is_sheet = name.starts_with("step_") && name.size() == last.size() && name <= last &&
                          (file.path().extension() == ".png" || file.path().extension() == ".webp");
    if (is_sheet && (!newest || fs::path(*newest).stem().string() < name)) newest = file.path().string();
  }
  return newest;
}

}  // namespace ditto::report
