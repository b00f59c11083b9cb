// A source whose samples are the .bin files of its folder, and whose fingerprint does not see all that it should.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <torch/types.h>

#include <ditto/data.h>
#include <ditto/error.h>

namespace {

namespace fs = std::filesystem;

struct Options {
  std::string fault = "none";
  void read(ditto::OptionReader& option) { option("fault", fault, "the promise to break"); }
};

class Files final : public ditto::Source {
 public:
  using Options = ::Options;
  Files(const Options& options, const Needs& needs) : fault_(options.fault) {
    for (const auto& entry : fs::directory_iterator(needs.folder))
      if (entry.path().extension() == ".bin") files_.push_back(entry.path());
    std::sort(files_.begin(), files_.end());
    if (files_.empty()) throw ditto::Error(ditto::ErrorKind::data, needs.folder, "holds no .bin file");
  }

  int64_t size() const override { return static_cast<int64_t>(files_.size()); }
  ditto::TensorSpecs makes() const override { return {{"bytes", at::kByte, {-1}, "any"}}; }
  ditto::Sample read(int64_t index) const override {
    const auto& path = files_.at(static_cast<size_t>(index));
    auto bytes = bytes_of(path);
    return {{{"bytes", torch::from_blob(bytes.data(), {static_cast<int64_t>(bytes.size())}, at::kByte).clone()}},
            path.string()};
  }

  std::string fingerprint() const override {
    std::string text = std::to_string(files_.size());
    for (size_t i = 0; i < files_.size(); i += fault_ == "every third" ? 3 : 1) {
      const auto bytes = bytes_of(files_[i]);
      const auto end = std::min<size_t>(bytes.size(), 50);
      if (fault_ != "no sizes") text += ' ' + std::to_string(bytes.size());
      if (fault_ != "no heads") text += ' ' + bytes.substr(0, end);
      if (fault_ != "no tails") text += ' ' + bytes.substr(bytes.size() - end);
    }
    return text;
  }

 private:
  static std::string bytes_of(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::string fault_;
  std::vector<fs::path> files_;
};

}  // namespace

DITTO_PLUGIN(Source, Files, "faulty_files", "1.0.0", "Apache-2.0", "files whose fingerprint misses something")
