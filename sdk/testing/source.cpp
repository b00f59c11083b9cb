// The promises of a source of data.
#include <future>

#include <ditto/testing/checks.h>

#include "numbers.h"

namespace ditto::testing {

using torch::Tensor;

namespace {

bool equal(const Sample& a, const Sample& b) {
  if (a.place != b.place || a.tensors.size() != b.tensors.size()) return false;
  for (const auto& [name, tensor] : a.tensors)
    if (!b.tensors.count(name) || !tensor.equal(b.tensors.at(name))) return false;
  return true;
}

class SourceTest {
 public:
  SourceTest(const std::string& path, const OptionValues& options, Source::Needs needs)
      : path_(path), options_(options), needs_(std::move(needs)) {}

  void run(Report& report) {
    const std::string of = needs_.split == SplitOf::train ? "training part: " : "validation part: ";
    report.check(of + "it can be opened, and has samples", [&] {
      source_ = make<Source>(path_, options_, needs_);
      return std::string(source_->size() > 0 ? "" : "it has none");
    });
    if (!source_) return;
    report.check(of + "samples are as makes() says, indices within their values", [&] { return spec(); });
    report.check(of + "a sample read twice is the same, and names its place", [&] { return repeat(); });
    report.check(of + "four threads read what one does", [&] { return threads(); });
    report.check(of + "equal content has an equal fingerprint", [&] { return fingerprint(); });
    const auto promise = of + "info() tells the shapes that samples have";
    if (tells_nothing())
      report.skip(promise, "it tells nothing of any sample");
    else
      report.check(promise, [&] { return info(); });
  }

 private:
  int64_t count() const { return std::min<int64_t>(source_->size(), 64); }

  std::string spec() const {
    for (int64_t i = 0; i < count(); ++i) {
      const Sample sample = source_->read(i);
      for (const TensorSpec& wanted : source_->makes()) {
        const auto it = sample.tensors.find(wanted.name);
        const auto problem = misfit(it == sample.tensors.end() ? Tensor() : it->second, wanted);
        if (!problem.empty()) return sample.place + ": " + problem;
        if (wanted.values == 0) continue;
        const Tensor& index = it->second;
        if ((index.lt(0) | index.ge(wanted.values)).any().item<bool>())
          return sample.place + ": \"" + wanted.name + "\" is not within 0 … " + std::to_string(wanted.values - 1);
      }
    }
    return {};
  }

  std::string repeat() const {
    for (const int64_t i : {int64_t{0}, source_->size() - 1}) {
      const Sample sample = source_->read(i);
      if (sample.place.empty()) return "sample " + std::to_string(i) + " names no place";
      if (!equal(sample, source_->read(i))) return sample.place + " differs";
    }
    return {};
  }

  std::string threads() const {
    std::vector<Sample> expected;
    for (int64_t i = 0; i < count(); ++i) expected.push_back(source_->read(i));
    const auto read_all = [&](int64_t first) {
      for (int64_t n = 0; n < count(); ++n) {
        const int64_t i = (first + n) % count();  // each thread begins elsewhere
        if (!equal(source_->read(i), expected[static_cast<size_t>(i)]))
          return expected[static_cast<size_t>(i)].place + " differs";
      }
      return std::string();
    };
    std::vector<std::future<std::string>> readers;
    for (int64_t t = 0; t < 4; ++t) readers.push_back(std::async(std::launch::async, read_all, t * count() / 4));
    std::string problem;
    for (auto& reader : readers)
      if (auto found = reader.get(); !found.empty()) problem = found;
    return problem;
  }

  std::string fingerprint() const {
    const std::string first = source_->fingerprint();
    if (first.empty()) return "it is empty";
    const auto again = make<Source>(path_, options_, needs_);
    return again->fingerprint() == first ? "" : "opened again, it is another";
  }

  bool tells_nothing() const {
    for (int64_t i = 0; i < count(); ++i)
      if (!source_->info(i).empty()) return false;
    return true;
  }

  std::string info() const {
    for (int64_t i = 0; i < count(); ++i) {
      const Sample sample = source_->read(i);
      for (const auto& [name, shape] : source_->info(i)) {
        const auto it = sample.tensors.find(name);
        if (it == sample.tensors.end()) return sample.place + ": info() tells of \"" + name + "\", which is not there";
        if (it->second.sizes() != at::IntArrayRef(shape))
          return sample.place + ": \"" + name + "\" has shape " + shape_text(it->second.sizes()) + ", info() says " +
                 shape_text(shape);
      }
    }
    return {};
  }

  std::string path_;
  OptionValues options_;
  Source::Needs needs_;
  std::shared_ptr<Source> source_;
};

}  // namespace

Report check_source(const std::string& path, const OptionValues& options, const std::string& folder) {
  Report report("data " + path);
  for (const SplitOf split : {SplitOf::train, SplitOf::validation})
    report.guard([&] { SourceTest(path, options, {.split = split, .folder = folder}).run(report); });
  return report;
}

}  // namespace ditto::testing
