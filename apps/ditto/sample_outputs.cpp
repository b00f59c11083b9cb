#include "apps/ditto/sample_outputs.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>

#include <fmt/format.h>

#include <ditto/text.h>

#include "core/checkpoint/tensor_file.h"
#include "core/data/names.h"
#include "core/formats/file.h"
#include "core/formats/output_folder.h"
#include "core/formats/tensor/npz.h"
#include "core/formats/text/json.h"
#include "core/sample/file_names.h"
#include "core/sample/grid.h"

namespace ditto {

namespace fs = std::filesystem;

namespace {

constexpr double kFramesASecond = 8;
constexpr size_t kOnSheet = 1024;      // samples; all of a large set would be a picture that nothing opens
constexpr int64_t kClassColumns = 20;  // a column for each class, up to so many
constexpr const char* kList = "samples.jsonl";
constexpr uint64_t kMostListBytes = uint64_t{4} << 30;

nlohmann::json json_of(const formats::Node& node) {
  if (const auto* table = node.as<formats::Table>()) {
    auto object = nlohmann::json::object();
    for (const auto& entry : table->entries()) object[entry.key] = json_of(entry.value);
    return object;
  }
  if (const auto* list = node.as<formats::Array>()) {
    auto array = nlohmann::json::array();
    for (const auto& one : *list) array.push_back(json_of(one));
    return array;
  }
  if (const auto* number = node.as<double>())
    return std::isfinite(*number) ? nlohmann::json(*number) : nlohmann::json(fmt::format("{}", *number));
  if (const auto* whole = node.as<int64_t>()) return *whole;
  if (const auto* truth = node.as<bool>()) return *truth;
  return *node.as<std::string>();
}

std::string file_of(const std::string& path) { return fs::path(path).filename().string(); }

void require_file(const std::string& path, const std::string& option) {
  if (path.empty()) return;
  std::error_code ignored;
  if (fs::is_directory(path, ignored))
    throw Error(ErrorKind::config, option + " " + path, "is a folder", "name a file");
  const auto folder = fs::path(path).parent_path();
  formats::require_writable(folder.empty() ? "." : folder.string(), option);
}

}  // namespace

SampleOutputs::SampleOutputs(const SampleArguments& arguments, const Asked& asked, const SavedModel& saved,
                             Networks& networks)
    : a_(arguments),
      asked_(asked),
      saved_(saved),
      networks_(networks),
      video_(asked.requests.shape.size() == 4),
      no_pictures_(networks.no_pictures()) {
  if (a_.out.empty() && a_.save_latents.empty() && a_.npz.empty())
    throw Error(ErrorKind::config, "sample", "nothing would be written",
                "add --out FOLDER, --npz FILE or --save-latents FILE");
  const bool wants_pictures = !a_.npz.empty() || a_.save_latents.empty();
  if (wants_pictures && !no_pictures_.empty())
    throw Error(ErrorKind::config, saved.recipe.model.where,
                "model \"" + saved.recipe.model.plugin + "\" " + no_pictures_,
                "write its samples with --save-latents FILE, and no --npz");
  if (a_.fps && !video_)
    throw Error(ErrorKind::config, fmt::format("--fps {}", *a_.fps), "this model makes pictures", "leave it out");
  if (a_.out.empty() && (!a_.name.empty() || a_.fps))
    throw Error(ErrorKind::config, a_.name.empty() ? "--fps" : "--name", "there is no --out to write files to",
                "add --out FOLDER, or leave it out");
  names_ = file_names(a_.name, video_ ? ".webp" : ".png", asked.requests.seeds, asked.classes,
                      {kList, video_ ? "grid.webp" : "grid.png"});
  const auto& recipe = saved.recipe;
  common_ = {{"run", recipe.run.name},
             {"checkpoint", file_of(saved.path)},
             {"step", saved.step},
             {"weights", saved.has_ema ? a_.weights : "weights"},
             {"sampler", json_of(*recipe.resolved().find("sampler"))},
             {"guidance", json_of(*recipe.resolved().find("guidance"))},
             {"precision", recipe.run.precision},
             {"batch", a_.batch},
             {"size", std::vector<int64_t>(asked.requests.shape.begin() + 1, asked.requests.shape.end())}};
  if (recipe.cache) common_["cache"] = json_of(*recipe.resolved().find("cache"));
  if (video_) common_["fps"] = a_.fps.value_or(kFramesASecond);
  if (!a_.network.empty()) common_["network"] = a_.network;
  if (!a_.adapter.empty()) common_["adapter"] = a_.adapter;
  std::vector<std::string> sets;  // but for layouts, which change nothing
  for (const auto& set : a_.sets)
    if (!set.starts_with("parallel.")) sets.push_back(set);
  if (!sets.empty()) common_["set"] = sets;
  if (!a_.noise.empty()) common_["noise"] = file_of(a_.noise);
  if (!a_.condition.empty()) common_["condition"] = file_of(a_.condition);
  if (!a_.negative.empty()) common_["negative"] = file_of(a_.negative);
}

std::string SampleOutputs::in_folder(const std::string& name) const { return (fs::path(a_.out) / name).string(); }

void SampleOutputs::prepare() const {
  require_file(a_.save_latents, "--save-latents");
  require_file(a_.npz, "--npz");
  if (!no_pictures_.empty() || a_.out.empty()) return;
  refuse_earlier();
  formats::make_output_folder(a_.out, "--out");
  for (const auto& name : names_)
    if (const auto folder = fs::path(name).parent_path(); !folder.empty())
      formats::make_output_folder(in_folder(folder.string()), "--name");
}

// What the list of an earlier command names, as far as it lies in the folder, with list and sheets.
std::vector<std::string> SampleOutputs::earlier_files() const {
  std::vector<std::string> files;
  std::error_code ignored;
  const auto home = fs::canonical(a_.out, ignored);
  const auto add = [&](const std::string& name) {
    const auto path = fs::canonical(in_folder(name), ignored);  // a folder in it may be a link to another
    if (path == home / name && fs::is_regular_file(path, ignored)) files.push_back(name);
  };
  if (fs::is_regular_file(in_folder(kList), ignored)) {
    std::istringstream lines(formats::read_file(in_folder(kList), ErrorKind::data, kMostListBytes));
    for (std::string line; std::getline(lines, line);) {
      const auto one = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      const auto file = one.is_object() ? one.find("file") : one.end();
      if (file == one.end() || !file->is_string()) continue;
      const fs::path name = file->get<std::string>();
      if (name.is_relative() && (name.extension() == ".png" || name.extension() == ".webp")) add(name.string());
    }
  }
  for (const char* name : {"grid.png", "grid.webp", kList}) add(name);
  return files;
}

void SampleOutputs::refuse_earlier() const {
  auto earlier = earlier_files();
  if (!earlier.empty() && !a_.overwrite)
    throw Error(ErrorKind::config, "--out " + a_.out,
                fmt::format("holds {} file{} of samples from before ({}), which would lie among these", earlier.size(),
                            earlier.size() == 1 ? "" : "s", shown(earlier.front())),
                "name another folder, or add --overwrite, which removes them");
  std::sort(earlier.begin(), earlier.end());
  std::error_code ignored;
  for (const auto& name : names_)
    if (fs::exists(fs::symlink_status(in_folder(name), ignored)) &&
        !std::binary_search(earlier.begin(), earlier.end(), name))
      throw Error(ErrorKind::config, "--out " + a_.out,
                  fmt::format("holds {}, which no list of samples names, and would be replaced", shown(name)),
                  "name another folder, or move that file away");
}

nlohmann::json SampleOutputs::settings(size_t i) const {
  auto one = common_;
  one["seed"] = asked_.requests.seeds[i];
  if (!asked_.classes.empty()) {
    one["class"] = asked_.classes[i];
    if (!asked_.class_names.empty()) one["class_name"] = asked_.class_names[static_cast<size_t>(asked_.classes[i])];
  }
  if (asked_.condition_rows > 0) one["row"] = asked_.condition_rows == 1 ? 0 : i;
  if (!asked_.prompts.empty()) one["prompt"] = asked_.prompts[asked_.prompts.size() == 1 ? 0 : i];
  return one;
}

bool SampleOutputs::decodes() const { return no_pictures_.empty() && !(a_.out.empty() && a_.npz.empty()); }

void SampleOutputs::decode(const torch::Tensor& latents,
                           const std::function<void(int64_t first, const torch::Tensor&)>& take) {
  for (int64_t first = 0; first < latents.size(0); first += a_.batch)
    take(first, networks_.decode(latents.slice(0, first, std::min(first + a_.batch, latents.size(0)))).cpu());
}

void SampleOutputs::help_to_decode(const torch::Tensor& latents) {
  if (decodes() && networks_.decodes_together()) decode(latents, [](int64_t, const torch::Tensor&) {});
}

// Before what it lists, so that who interrupts the writing leaves nothing that no list names.
void SampleOutputs::write_list() {
  std::error_code ignored;
  for (const auto& name : earlier_files()) fs::remove(in_folder(name), ignored);
  std::string list;
  for (size_t i = 0; i < names_.size(); ++i) {
    files_.push_back(settings(i));
    files_.back()["file"] = names_[i];
    list += formats::ascii_json(files_.back(), -1) + '\n';
  }
  formats::write_file(in_folder(kList), std::as_bytes(std::span(list)), ErrorKind::data);
}

void SampleOutputs::write(const torch::Tensor& latents) {
  if (!a_.save_latents.empty()) write_tensors(a_.save_latents, {{"latents", latents.cpu()}});
  if (!decodes()) return;
  if (!a_.out.empty()) write_list();
  decode(latents, [this](int64_t first, const torch::Tensor& decoded) {
    for (int64_t i = 0; i < decoded.size(0); ++i)  // a video's frames as pictures
      add(report::to_pictures(video_ ? decoded[i].transpose(0, 1) : decoded.slice(0, i, i + 1)),
          static_cast<size_t>(first + i));
  });
  if (!a_.out.empty()) write_sheet();
  if (!a_.npz.empty()) write_npz();
}

void SampleOutputs::add(const std::vector<formats::Picture>& frames, size_t i) {
  if (!a_.npz.empty())
    for (const auto& frame : frames) pixels_.insert(pixels_.end(), frame.pixels.begin(), frame.pixels.end());
  const auto& first = frames.front();
  shape_of_one_ = {first.height, first.width, first.channels};
  if (video_) shape_of_one_.insert(shape_of_one_.begin(), static_cast<int64_t>(frames.size()));
  if (a_.out.empty()) return;
  if (video_)
    formats::write_webp(in_folder(names_[i]), frames, common_["fps"].get<double>());
  else
    formats::write_png(in_folder(names_[i]), first, report::settings_text(formats::ascii_json(settings(i), -1)));
  if (i >= kOnSheet) return;
  on_sheet_.resize(frames.size());
  for (size_t f = 0; f < frames.size(); ++f) on_sheet_[f].push_back(frames[f]);
}

void SampleOutputs::write_sheet() {
  report::SheetOptions look;
  const auto takes = networks_.conditions();
  const auto* label = asked_.classes.empty() ? nullptr : find(takes, names::kLabel);
  if (label && label->values <= kClassColumns) look.columns = static_cast<int>(label->values);
  std::vector<formats::Picture> sheets;
  for (const auto& frame : on_sheet_) sheets.push_back(report::make_sheet(frame, look));
  if (video_)
    formats::write_webp(in_folder("grid.webp"), sheets, common_["fps"].get<double>());
  else
    formats::write_png(in_folder("grid.png"), sheets.front());
}

// As ADM's evaluator reads samples: arr_0, and of classes arr_1.
void SampleOutputs::write_npz() const {
  auto shape = shape_of_one_;
  shape.insert(shape.begin(), static_cast<int64_t>(names_.size()));
  std::vector<formats::NpyArray> arrays{{"arr_0", "|u1", shape, std::as_bytes(std::span(pixels_))}};
  if (!asked_.classes.empty())
    arrays.push_back({"arr_1", "<i8", {static_cast<int64_t>(names_.size())}, std::as_bytes(std::span(asked_.classes))});
  formats::write_npz(a_.npz, arrays);
}

void SampleOutputs::compare(const torch::Tensor& cached, const torch::Tensor& uncached) {
  const auto apart = (cached - uncached).flatten(1).to(torch::kCPU, torch::kDouble).norm(2, 1),
             size = uncached.flatten(1).to(torch::kCPU, torch::kDouble).norm(2, 1);
  errors_ = {{"cache error", (apart.norm() / size.norm()).item<double>()},
             {"cache error, largest of a sample", (apart / size).max().item<double>()}};
}

std::string SampleOutputs::report() const {
  const size_t count = asked_.requests.seeds.size();
  const auto sheet = video_ ? "grid.webp" : "grid.png";
  if (a_.json) {
    nlohmann::json all{{"count", count}, {"settings", common_}, {"samples", files_}};
    if (!a_.out.empty() && no_pictures_.empty()) all["out"] = a_.out, all["grid"] = sheet, all["list"] = kList;
    if (!a_.save_latents.empty()) all["latents"] = a_.save_latents;
    if (!a_.npz.empty()) all["npz"] = a_.npz;
    if (!no_pictures_.empty()) all["no_pictures"] = "the model " + no_pictures_;
    if (!decisions.empty()) all["decisions"] = decisions;
    if (!errors_.empty()) all["errors"] = errors_;
    return formats::ascii_json(all) + "\n";
  }
  std::string text;
  for (const auto& [what, number] : decisions) text += fmt::format("{}: {}\n", what, number);
  for (const auto& [what, number] : errors_) text += fmt::format("{}: {:.3g}\n", what, number);
  if (!a_.save_latents.empty()) text += fmt::format("latents of {} samples: {}\n", count, shown(a_.save_latents));
  if (!no_pictures_.empty()) return text + "no pictures: the model " + no_pictures_ + "\n";
  if (!a_.out.empty())
    text +=
        fmt::format("{} {}, and {} in {}\n", count, video_ ? "videos" : "pictures",
                    count > kOnSheet ? fmt::format("the first {}", kOnSheet) : "all of them", shown(in_folder(sheet)));
  if (!a_.npz.empty()) text += fmt::format("{} samples as arrays: {}\n", count, shown(a_.npz));
  return text;
}

}  // namespace ditto
