#include "apps/ditto/sample_outputs.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <span>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include <ditto/text.h>

#include "core/checkpoint/disk.h"
#include "core/checkpoint/tensor_file.h"
#include "core/console/progress.h"
#include "core/console/streams.h"
#include "core/data/names.h"
#include "core/formats/file.h"
#include "core/formats/names.h"
#include "core/formats/output_folder.h"
#include "core/formats/tensor/safetensors.h"
#include "core/formats/text/json.h"
#include "core/formats/text/toml_json.h"
#include "core/network/adapter.h"
#include "core/sample/file_names.h"
#include "core/sample/grid.h"
#include "core/sample/request_hash.h"

namespace ditto {

namespace fs = std::filesystem;

namespace {

constexpr double kFramesASecond = 8;
constexpr size_t kOnSheet = 1024;      // samples; all of a large set would be a picture that nothing opens
constexpr int64_t kClassColumns = 20;  // a column for each class, up to so many
constexpr int64_t kTextBytes = 4096;   // of a picture's settings, at most: in it and in the list

std::string last_part(const std::string& path) { return fs::path(path).filename().string(); }

std::string folder_of(const std::string& file) {
  const auto folder = fs::path(file).parent_path();
  return folder.empty() ? "." : folder.string();
}

void require_file(const std::string& path, const std::string& option) {
  if (!path.empty()) formats::require_output_file(path, option);
}

// Of the ranks that have the same samples the first.
bool is_first_with_its_samples(const Mesh& mesh) {
  return std::all_of(kAxes.begin(), kAxes.end(),
                     [&](Axis axis) { return is_data_axis(axis) || mesh.index(axis) == 0; });
}

// What rank 0 finds, on all ranks.
std::vector<uint8_t> on_all(const Mesh& mesh, size_t count, const std::function<std::vector<uint8_t>()>& look) {
  std::vector<uint8_t> flags(count, 0);
  if (mesh.rank() == 0) flags = look();
  if (mesh.world_size() > 1)
    mesh.world().broadcast(torch::from_blob(flags.data(), {static_cast<int64_t>(count)}, torch::kByte), 0);
  return flags;
}

int64_t product(const std::vector<int64_t>& sizes) {
  int64_t all = 1;
  for (const auto size : sizes) all *= size;
  return all;
}

}  // namespace

SampleOutputs::SampleOutputs(const SampleArguments& arguments, const Asked& asked, const SavedModel& saved,
                             Networks& networks, const torch::Tensor& noise)
    : a_(arguments),
      asked_(asked),
      saved_(saved),
      networks_(networks),
      video_(asked.requests.shape.size() == 4),
      writes_(is_first_with_its_samples(networks.main->mesh())),
      decoded_(networks.decoded_shape(asked.requests.shape)),
      no_pictures_(no_pictures_of(decoded_)) {
  refuse_arguments();
  common_ = common_settings();
  request_ = request_of(noise);
  common_[SampleFolder::kRequest] = request_;
  auto names = file_names(a_.name, video_ ? ".webp" : ".png", asked.requests.seeds, asked.classes,
                          {SampleFolder::kList, video_ ? "grid.webp" : "grid.png"});
  if (!a_.out.empty() && no_pictures_.empty())
    folder_.emplace(a_.out, std::move(names), [this](size_t i) { return settings(i); });
  if (!a_.npz.empty()) lay_out_npz();
  if (!a_.save_latents.empty())
    latents_.emplace(tensor_file(a_.save_latents, "--save-latents", "latents", asked.requests.shape));
  if (!a_.pass.empty())
    passed_.emplace(tensor_file(a_.pass.file, a_.kept_texts.empty() ? "--pass" : "--out", a_.pass.name, decoded_));
}

void SampleOutputs::refuse_arguments() const {
  if (a_.out.empty() && a_.save_latents.empty() && a_.npz.empty() && a_.pass.empty())
    throw Error(ErrorKind::config, "sample", "nothing would be written",
                "add --out FOLDER, --npz FILE or --save-latents FILE");
  const bool wants_pictures = !a_.npz.empty() || !a_.pass.empty() || a_.save_latents.empty();
  if (wants_pictures && !no_pictures_.empty())
    throw Error(ErrorKind::config, saved_.recipe.model.where,
                "model \"" + saved_.recipe.model.plugin + "\" " + no_pictures_,
                "write its samples with --save-latents FILE, and no --npz");
  refuse_same_places(a_);
  if (a_.fps && !video_)
    throw Error(ErrorKind::config, fmt::format("--fps {}", *a_.fps), "this model makes pictures", "leave it out");
  if (a_.out.empty() && (!a_.name.empty() || a_.fps))
    throw Error(ErrorKind::config, a_.name.empty() ? "--fps" : "--name", "there is no --out to write files to",
                "add --out FOLDER, or leave it out");
  if (a_.npz_channels && a_.npz.empty())
    throw Error(ErrorKind::config, fmt::format("--npz-channels {}", *a_.npz_channels), "there is no --npz",
                "add --npz FILE, or leave it out");
}

nlohmann::json SampleOutputs::common_settings() const {
  const auto& recipe = saved_.recipe;
  nlohmann::json common{{"run", recipe.run.name},
                        {"checkpoint", last_part(fs::canonical(saved_.path).string())},  // "latest" is a link to it
                        {"step", saved_.step},
                        {"weights", saved_.has_ema ? a_.weights : "weights"},
                        {"sampler", formats::json_of(*recipe.resolved().find("sampler"))},
                        {"guidance", formats::json_of(*recipe.resolved().find("guidance"))},
                        {"precision", recipe.run.precision},
                        {"batch", a_.batch},
                        {"size", std::vector<int64_t>(asked_.requests.shape.begin() + 1, asked_.requests.shape.end())}};
  if (recipe.cache) common["cache"] = formats::json_of(*recipe.resolved().find("cache"));
  if (video_) common["fps"] = a_.fps.value_or(kFramesASecond);
  if (!a_.network.empty()) common["network"] = a_.network;
  if (!a_.adapter.empty()) common["adapter"] = a_.adapter;
  if (a_.series > 0) common["series"] = a_.series;
  std::vector<std::string> sets;  // but for layouts, which change nothing
  for (const auto& set : a_.sets)
    if (!set.starts_with("parallel.")) sets.push_back(set);
  if (!sets.empty()) common["set"] = sets;
  if (!a_.noise.empty()) common["noise"] = last_part(a_.noise);
  if (!a_.condition.empty()) common["condition"] = last_part(a_.condition);
  if (!a_.negative.empty()) common["negative"] = last_part(a_.negative);
  return common;
}

// With the weights of all that takes part, wherever they lie.
std::string SampleOutputs::request_of(const torch::Tensor& noise) const {
  nlohmann::json all{{"settings", common_},
                     {"checkpoint", saved_.fingerprint},
                     {"networks", networks_.fingerprints()},
                     {"name", a_.name},
                     {"prompts", asked_.requests.prompts}};
  if (!asked_.requests.negative_prompts.empty()) all["negative_prompts"] = asked_.requests.negative_prompts;
  if (saved_.base) all["base"] = saved_.base->fingerprint;
  if (!a_.adapter.empty()) all["adapter"] = fingerprint_of_adapter(saved_.recipe.adapter->weights);
  for (const auto& encoder : networks_.encoders) all["encoders"][encoder->section] = encoder->fingerprint();
  return request_hash(asked_.requests, noise, formats::ascii_json(all, -1));
}

// As ADM's evaluator reads samples: arr_0, and of classes arr_1.
void SampleOutputs::lay_out_npz() {
  const auto count = static_cast<int64_t>(asked_.requests.seeds.size());
  std::vector<int64_t> shape(decoded_.begin() + 1, decoded_.end());
  shape.push_back(a_.npz_channels.value_or(decoded_.front()));
  const auto row_bytes = static_cast<uint64_t>(product(shape));
  shape.insert(shape.begin(), count);
  std::vector<formats::NpyArray> arrays{{"arr_0", "|u1", std::move(shape), {}}};
  std::vector<uint64_t> bytes{static_cast<uint64_t>(count) * row_bytes};
  const auto classes = std::as_bytes(std::span(asked_.classes));
  if (!classes.empty()) {
    arrays.push_back({"arr_1", "<i8", {count}, {}});
    bytes.push_back(classes.size());
  }
  const auto own = a_.npz_channels ? "3 channels of " + request_ : std::string();
  const auto request = own.empty() ? request_ : checkpoint::checksum(std::as_bytes(std::span(own)));
  const auto layout = std::make_shared<formats::NpzLayout>(arrays, bytes, "ditto request " + request);
  const auto around = [layout, classes](uint32_t crc) {
    if (classes.empty()) return layout->around({crc});
    auto pieces = layout->around({crc, formats::crc32(classes)});
    pieces.emplace_back(layout->begin(1), std::string(reinterpret_cast<const char*>(classes.data()), classes.size()));
    return pieces;
  };
  npz_.emplace(a_.npz, "--npz", count, RowsLayout{layout->begin(0), row_bytes, layout->file_bytes(), around}, request);
}

RowsFile SampleOutputs::tensor_file(const std::string& path, const std::string& option, const std::string& name,
                                    std::vector<int64_t> shape) const {
  const auto dtype = networks_.main->ctx->compute == torch::kDouble ? torch::kDouble : torch::kFloat;
  const auto row_bytes = static_cast<uint64_t>(product(shape)) * c10::elementSize(dtype);
  const auto count = static_cast<int64_t>(asked_.requests.seeds.size());
  shape.insert(shape.begin(), count);
  const formats::TensorDeclaration tensor{name, dtype_of(torch::empty(0, dtype), path), shape};
  const auto around = [tensor, request = request_](uint32_t crc) {
    return std::vector<formats::Piece>{
        {0, formats::safetensors_header({tensor}, {{"crc32", fmt::format("{:08x}", crc)}, {"request", request}})}};
  };
  const auto begin = around(0).front().second.size();
  return {path, option, count, {begin, row_bytes, begin + static_cast<uint64_t>(count) * row_bytes, around}, request_};
}

std::vector<int64_t> SampleOutputs::prepare(int64_t batch) {
  const auto& mesh = networks_.main->mesh();
  const auto count = asked_.requests.seeds.size();
  if (mesh.rank() == 0) {
    require_file(a_.save_latents, "--save-latents");
    require_file(a_.npz, "--npz");
    require_file(a_.pass.file, "--pass");
  }
  Flags all(count, 1);
  const auto find = [&](Flags& there, const std::function<Flags()>& look) {
    there = on_all(mesh, count, look);
    for (size_t i = 0; i < count; ++i) all[i] = all[i] && there[i];
  };
  if (latents_) find(latents_there_, [&] { return latents_->look(a_.overwrite); });
  if (passed_) find(passed_there_, [&] { return passed_->look(a_.overwrite); });
  if (npz_) find(npz_there_, [&] { return npz_->look(a_.overwrite); });
  if (folder_)
    find(folder_there_, [&] {
      return folder_->prepare(a_.overwrite, [](const std::string& line) { report::tell("warning: " + line); });
    });
  if (mesh.rank() == 0)
    for (auto* file : {&latents_, &passed_, &npz_})
      if (*file) (*file)->begin();
  if (mesh.world_size() > 1) mesh.world().barrier();  // no rank writes before
  missing_ = std::count(all.begin(), all.end(), 0);
  std::vector<int64_t> batches;
  const auto at_once = static_cast<size_t>(batch);
  for (size_t first = 0; first < count; first += at_once) {
    const auto begin = all.begin() + static_cast<ptrdiff_t>(first);
    if (std::find(begin, begin + static_cast<ptrdiff_t>(std::min(at_once, count - first)), 0) !=
        begin + static_cast<ptrdiff_t>(std::min(at_once, count - first)))
      batches.push_back(static_cast<int64_t>(first / at_once));
  }
  return batches;
}

std::string SampleOutputs::plan() const {
  const auto count = static_cast<int64_t>(asked_.requests.seeds.size());
  const auto* what = !decodes() ? "latents" : video_ ? "videos" : "pictures";
  std::string size;
  const auto& shape = decodes() ? decoded_ : asked_.requests.shape;
  for (size_t i = 1; i < shape.size(); ++i) size += fmt::format("{}{}", i == 1 ? "" : " x ", shape[i]);
  auto text = fmt::format("{} {} of {}", count, what, size);
  if (missing_ == 0) return text + ": all are there already";
  if (missing_ < count) text += fmt::format(", of which {} are there already", count - missing_);
  std::string disk;
  uint64_t needed = 0;
  const auto add = [&](uint64_t bytes, const char* about, const std::string& path) {
    needed += bytes;
    disk += fmt::format("{}{}{} in {}", disk.empty() ? ": " : ", ", about,
                        report::bytes_text(static_cast<int64_t>(bytes)), shown(path));
  };
  if (folder_) add(static_cast<uint64_t>(count * (product(decoded_) + kTextBytes)), "up to ", a_.out);
  if (npz_) add(npz_->bytes(), "", a_.npz);
  if (latents_) add(latents_->bytes(), "", a_.save_latents);
  if (passed_) add(passed_->bytes(), "", a_.pass.file);
  std::error_code failed;
  const auto& file = npz_ ? a_.npz : latents_ ? a_.save_latents : a_.pass.file;
  const auto room = fs::space(folder_ ? a_.out : folder_of(file), failed);
  if (failed) return text + disk;
  text += disk + fmt::format("; {} are free", report::bytes_text(static_cast<int64_t>(room.available)));
  return text + (room.available < needed && missing_ == count ? ", which may not be enough" : "");
}

nlohmann::json SampleOutputs::settings(size_t i) const {
  auto one = common_;
  one["seed"] = asked_.requests.seeds[i];
  if (!asked_.classes.empty()) {
    one["class"] = asked_.classes[i];
    if (!asked_.class_names.empty()) one["class_name"] = asked_.class_names[static_cast<size_t>(asked_.classes[i])];
  }
  if (asked_.condition_rows > 0) one["row"] = asked_.condition_rows == 1 ? 0 : i;
  const auto& [prompts, negative] = std::tie(asked_.requests.prompts, asked_.requests.negative_prompts);
  if (!prompts.empty()) one["prompt"] = prompts[prompts.size() == 1 ? 0 : i];
  if (!negative.empty()) one["negative_prompt"] = negative[negative.size() == 1 ? 0 : i];
  return one;
}

// Of samples from `first` on those that are not there.
void SampleOutputs::write_rows(RowsFile& file, const Flags& there, const torch::Tensor& samples, size_t first) {
  const auto rows = samples.cpu().contiguous();
  for (int64_t i = 0; i < rows.size(0); ++i)
    if (const auto row = static_cast<int64_t>(first) + i; !there[static_cast<size_t>(row)])
      file.write(row, bytes_of(rows[i]));
  file.note();
}

// Where a picture cannot be made, or written, the latents that it would have been made of are there: they took the
// work.
void SampleOutputs::take(const MadeBatch& made) {
  const bool writes = made.is_own && writes_;
  const auto count = static_cast<size_t>(made.samples.size(0)), first = static_cast<size_t>(made.first);
  if (writes && latents_) write_rows(*latents_, latents_there_, made.samples, first);
  if (!decodes() || !(writes || networks_.decodes_together())) return;
  const auto decoded = networks_.decode(made.samples).cpu();
  if (!writes) return;
  if (passed_) write_rows(*passed_, passed_there_, decoded.clamp(-1, 1).to(made.samples.dtype()), first);
  for (size_t i = 0; i < count; ++i) {  // a video's frames as pictures
    const auto one = static_cast<int64_t>(i);
    add(report::to_pictures(video_ ? decoded[one].transpose(0, 1) : decoded.slice(0, one, one + 1)), first + i);
  }
  if (npz_) npz_->note();
}

void SampleOutputs::add(std::vector<formats::Picture> frames, size_t i) {
  if (folder_ && !folder_there_[i]) {
    const auto text = report::settings_text(formats::ascii_json(settings(i), -1));
    folder_->add(i, video_ ? formats::encode_webp(frames, common_["fps"].get<double>())
                           : formats::encode_png(frames.front(), text));
  }
  if (!npz_ || npz_there_[i]) return;
  std::vector<uint8_t> pixels;
  for (auto& frame : frames) {
    if (a_.npz_channels) formats::convert(frame, formats::Channels::rgb);
    pixels.insert(pixels.end(), frame.pixels.begin(), frame.pixels.end());
  }
  npz_->write(static_cast<int64_t>(i), std::as_bytes(std::span(pixels)));
}

void SampleOutputs::finish() {
  const auto& mesh = networks_.main->mesh();
  add_up_errors();
  for (auto* file : {&latents_, &passed_, &npz_})
    if (*file) (*file)->close();
  if (folder_) folder_->close();
  if (mesh.world_size() > 1) mesh.world().barrier();
  if (mesh.rank() != 0) return;
  if (latents_) latents_->finish();
  if (passed_) passed_->finish();
  if (folder_) folder_->finish();
  if (npz_) npz_->finish();
  if (folder_) write_sheet();
}

// Its pictures' words, row by row.
formats::PngText SampleOutputs::text_of_sheet() const {
  if (asked_.requests.prompts.empty()) return {};
  auto pictures = nlohmann::json::array();
  for (size_t i = 0; i < std::min(asked_.requests.seeds.size(), kOnSheet); ++i) {
    const auto all = settings(i);
    nlohmann::json one{{"seed", all.at("seed")}, {"prompt", all.at("prompt")}};
    if (all.contains("negative_prompt")) one["negative_prompt"] = all.at("negative_prompt");
    pictures.push_back(std::move(one));
  }
  return report::settings_text(
      formats::ascii_json(nlohmann::json{{"request", request_}, {"pictures", std::move(pictures)}}, -1));
}

// Of the files: other ranks and earlier commands have made some.
void SampleOutputs::write_sheet() const {
  report::SheetOptions look;
  const auto takes = networks_.conditions();
  const auto* label = asked_.classes.empty() ? nullptr : find(takes, names::kLabel);
  if (label && label->values <= kClassColumns) look.columns = static_cast<int>(label->values);
  std::vector<std::vector<formats::Picture>> frames(1);  // by frame, of the first samples
  for (size_t i = 0; i < std::min(asked_.requests.seeds.size(), kOnSheet); ++i) {
    const auto path = folder_->path(folder_->name(i));
    if (!video_) {
      frames.front().push_back(formats::read_picture(path));
      continue;
    }
    const auto bytes = formats::read_file(path, ErrorKind::data);
    auto of_one = formats::decode_webp_frames(std::as_bytes(std::span(bytes)), path);
    frames.resize(std::max(frames.size(), of_one.size()));
    for (size_t f = 0; f < of_one.size(); ++f) frames[f].push_back(std::move(of_one[f]));
  }
  std::vector<formats::Picture> sheets;
  for (const auto& frame : frames) sheets.push_back(report::make_sheet(frame, look));
  if (video_)
    formats::write_webp(folder_->path("grid.webp"), sheets, common_["fps"].get<double>());
  else
    formats::write_png(folder_->path("grid.png"), sheets.front(), text_of_sheet());
}

void SampleOutputs::compare(const torch::Tensor& cached, const torch::Tensor& uncached) {
  const auto apart = (cached - uncached).flatten(1).to(torch::kCPU, torch::kDouble).norm(2, 1),
             size = uncached.flatten(1).to(torch::kCPU, torch::kDouble).norm(2, 1);
  apart_ += apart.square().sum().item<double>();
  size_ += size.square().sum().item<double>();
  largest_ = std::max(largest_, (apart / size).max().item<double>());
}

// Of the samples that this command has made, on all ranks.
void SampleOutputs::add_up_errors() {
  if (!a_.cache_error || missing_ == 0) return;
  double apart = 0, size = 0, largest = 0;
  const auto own = torch::tensor({apart_, size_, largest_}, torch::kDouble).unsqueeze(0);
  const auto all = networks_.main->mesh().data_group().all_gather(own, 0);
  for (int64_t rank = 0; rank < all.size(0); ++rank) {
    apart += all[rank][0].item<double>();
    size += all[rank][1].item<double>();
    largest = std::max(largest, all[rank][2].item<double>());
  }
  errors_ = {{"cache error", std::sqrt(apart / size)}, {"cache error, largest of a sample", largest}};
}

void SampleOutputs::report(std::ostream& out) const {
  const size_t count = asked_.requests.seeds.size();
  const auto sheet = video_ ? "grid.webp" : "grid.png";
  if (a_.json) {
    nlohmann::json all{{"count", count}, {"made", missing_}, {"settings", common_}};
    if (folder_) all["out"] = a_.out, all["grid"] = sheet, all["list"] = SampleFolder::kList;
    if (latents_) all["latents"] = a_.save_latents;
    if (npz_) all["npz"] = a_.npz;
    if (!no_pictures_.empty()) all["no_pictures"] = "the model " + no_pictures_;
    if (!decisions.empty()) all["decisions"] = decisions;
    if (!errors_.empty()) all["errors"] = errors_;
    const auto text = formats::ascii_json(all);  // its last lines are made one by one
    out << text.substr(0, text.rfind("\n}")) << ",\n  \"samples\": [";
    for (size_t i = 0; folder_ && i < count; ++i)
      out << (i == 0 ? "\n    " : ",\n    ") << formats::ascii_json(folder_->line(i), -1);
    out << (folder_ ? "\n  ]\n}\n" : "]\n}\n");
    return;
  }
  for (const auto& [what, number] : decisions) out << fmt::format("{}: {}\n", what, number);
  for (const auto& [what, number] : errors_) out << fmt::format("{}: {:.3g}\n", what, number);
  if (latents_) out << fmt::format("latents of {}: {}\n", formats::counted(count, "sample"), shown(a_.save_latents));
  if (!no_pictures_.empty()) out << "no pictures: the model " << no_pictures_ << "\n";
  if (folder_)
    out << fmt::format("{}, and {} in {}\n", formats::counted(count, video_ ? "video" : "picture"),
                       count > kOnSheet ? fmt::format("the first {}", kOnSheet) : "all of them",
                       shown(folder_->path(sheet)));
  if (!npz_) return;
  out << fmt::format("{} as arrays: {}\n", formats::counted(count, "sample"), shown(a_.npz));
  if (decoded_.front() == 1 && !a_.npz_channels)
    out << "they are grey, of one channel; ADM's evaluator reads three: --npz-channels 3\n";
}

}  // namespace ditto
