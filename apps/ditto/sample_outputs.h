// What `ditto sample` leaves, as it comes: pictures or videos, their settings, latents, an npz; and all on one sheet.
#pragma once

#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "apps/ditto/sample_requests.h"
#include "core/formats/picture/picture.h"
#include "core/network/saved_model.h"
#include "core/sample/rows_file.h"
#include "core/sample/sample_folder.h"

namespace ditto {

class SampleOutputs {
 public:
  // On all ranks. All of these but `noise` outlive it. Throws Error(config) for names that are alike, outputs that
  // nothing would be written to, or pictures that are asked for and cannot be made.
  SampleOutputs(const SampleArguments& arguments, const Asked& asked, const SavedModel& saved, Networks& networks,
                const torch::Tensor& noise);
  // On all ranks together, before any sample is computed, so that no work is lost: folders, whether they can be
  // written, and what of this request is there already. The batches, of so many samples each, that lack something.
  // Throws Error(config) and Error(data) as SampleFolder and RowsFile do.
  std::vector<int64_t> prepare(int64_t batch);
  // Samples to make, what they take on the disk, and what is there: before they are made.
  std::string plan() const;
  // On each rank that has computed it: what it lacks is written, and said to be there.
  void take(const MadeBatch& made);
  // What --pass writes can be read by other ranks, on other machines too.
  void settle() {
    if (passed_) passed_->close();
  }
  // On all ranks together, once all is taken: files get their names, and there is a sheet.
  void finish();
  // One JSON object, or a line for each kind of file.
  void report(std::ostream& out) const;

  // What caching changed: of a batch with it and without it, to report.
  void compare(const torch::Tensor& cached, const torch::Tensor& uncached);
  bool decodes() const { return folder_ || npz_ || passed_; }
  // What --pass writes, of pictures of this shape.
  RowsFile& passed() { return *passed_; }
  const std::vector<int64_t>& decoded() const { return decoded_; }

  std::map<std::string, double> decisions;  // that sampler and cache took by themselves, to report

 private:
  using Flags = std::vector<uint8_t>;  // of each sample: it is there
  void refuse_arguments() const;
  nlohmann::json common_settings() const;
  std::string request_of(const torch::Tensor& noise) const;
  void lay_out_npz();
  // A row for each sample, of this shape, in the run's precision.
  RowsFile tensor_file(const std::string& path, const std::string& option, const std::string& name,
                       std::vector<int64_t> shape) const;
  nlohmann::json settings(size_t i) const;
  static void write_rows(RowsFile& file, const Flags& there, const torch::Tensor& samples, size_t first);
  void add(std::vector<formats::Picture> frames, size_t i);
  formats::PngText text_of_sheet() const;
  void write_sheet() const;
  void add_up_errors();

  const SampleArguments& a_;
  const Asked& asked_;
  const SavedModel& saved_;
  Networks& networks_;
  const bool video_, writes_;           // writes_: of the ranks that have this one's samples it is the first
  const std::vector<int64_t> decoded_;  // the shape of one picture or video
  const std::string no_pictures_;
  nlohmann::json common_;
  std::string request_;
  std::optional<SampleFolder> folder_;
  std::optional<RowsFile> npz_, latents_, passed_;
  Flags folder_there_, npz_there_, latents_there_, passed_there_;
  int64_t missing_ = 0;
  double apart_ = 0, size_ = 0, largest_ = 0;  // of samples with a cache from those without
  std::map<std::string, double> errors_;
};

}  // namespace ditto
