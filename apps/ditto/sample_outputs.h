// What `ditto sample` leaves: pictures or videos, their settings, all on one sheet, latents, an npz.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "apps/ditto/sample_requests.h"
#include "core/formats/picture/picture.h"
#include "core/network/saved_model.h"

namespace ditto {

class SampleOutputs {
 public:
  // All of these outlive it. Throws Error(config) for names that are alike, outputs that nothing would be written to,
  // or pictures that are asked for and cannot be made.
  SampleOutputs(const SampleArguments& arguments, const Asked& asked, const SavedModel& saved, Networks& networks);
  // Before any sample is computed, so that no work is lost: folders, whether they can be written, and whether samples
  // of before lie there. Throws Error(config).
  void prepare() const;
  // The samples themselves first, which took the work: pictures can be made of them again.
  void write(const torch::Tensor& latents);
  // In its place on the other ranks: a decoder may be cut over all of them.
  void help_to_decode(const torch::Tensor& latents);
  // One JSON object, or a line for each kind of file.
  std::string report() const;

  // What caching changed: of the samples with it and without it, to report.
  void compare(const torch::Tensor& cached, const torch::Tensor& uncached);

  std::map<std::string, double> decisions;  // that sampler and cache took by themselves, to report

 private:
  bool decodes() const;
  void decode(const torch::Tensor& latents, const std::function<void(int64_t first, const torch::Tensor&)>& take);
  nlohmann::json settings(size_t i) const;
  void add(const std::vector<formats::Picture>& frames, size_t i);
  void write_sheet();
  void write_npz() const;
  std::string in_folder(const std::string& name) const;
  std::vector<std::string> earlier_files() const;  // in --out, that another command has written
  void refuse_earlier() const;
  void write_list();

  const SampleArguments& a_;
  const Asked& asked_;
  const SavedModel& saved_;
  Networks& networks_;
  const bool video_;
  std::string no_pictures_;
  std::vector<std::string> names_;
  std::map<std::string, double> errors_;
  nlohmann::json common_, files_ = nlohmann::json::array();
  std::vector<std::vector<formats::Picture>> on_sheet_;  // by frame, of the first samples
  std::vector<uint8_t> pixels_;                          // of all, for --npz
  std::vector<int64_t> shape_of_one_;                    // of these
};

}  // namespace ditto
