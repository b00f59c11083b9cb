// The promises of a source of data, and of an encoder.
#include <future>

#include <ditto/testing/checks.h>

#include "model_run.h"
#include "numbers.h"

namespace ditto::testing {

using torch::Tensor;

namespace {

std::string fits(const Tensor& found, const TensorSpec& spec) {
  if (!found.defined()) return "\"" + spec.name + "\" is missing";
  if (found.scalar_type() != spec.dtype)
    return "\"" + spec.name + "\" is " + c10::toString(found.scalar_type()) + ", makes() says " +
           c10::toString(spec.dtype);
  bool same = found.dim() == static_cast<int64_t>(spec.shape.size());
  for (size_t i = 0; same && i < spec.shape.size(); ++i)
    same = spec.shape[i] < 0 || spec.shape[i] == found.size(static_cast<int64_t>(i));
  if (!same)
    return "\"" + spec.name + "\" has shape " + shape_text(found.sizes()) + ", makes() says " + shape_text(spec.shape);
  if (found.is_floating_point() && spec.range == "-1 … 1" && (found.abs() > 1).any().item<bool>())
    return "\"" + spec.name + "\" leaves -1 … 1";
  return found.is_floating_point() ? not_finite(found) : "";
}

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
    report.check(of + "info() tells the shapes that samples have", [&] { return info(); });
  }

 private:
  int64_t count() const { return std::min<int64_t>(source_->size(), 64); }

  std::string spec() const {
    for (int64_t i = 0; i < count(); ++i) {
      const Sample sample = source_->read(i);
      for (const TensorSpec& wanted : source_->makes()) {
        const auto it = sample.tensors.find(wanted.name);
        const auto problem = fits(it == sample.tensors.end() ? Tensor() : it->second, wanted);
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

Batch data_batch(const TensorSpecs& data) {
  Batch batch;
  batch.ids = {0, 1, 2}, batch.weights = {1, 1, 1};
  for (const TensorSpec& spec : data) {
    std::vector<int64_t> shape = spec.shape;
    shape.insert(shape.begin(), 3);
    batch[spec.name] = normal(spec.name, shape).tanh().to(spec.dtype);
  }
  return batch;
}

Batch encoded(const Encoder& encoder, const Batch& data) {
  auto ctx = context(at::kFloat);
  return encoder.encode(data, ctx);
}

std::string encodes(const Encoder& encoder, const Batch& data) {
  const Batch out = encoded(encoder, data);
  if (out.ids != data.ids) return "it changes the samples' ids";
  for (TensorSpec spec : encoder.makes()) {
    if (!out.has(spec.name)) return "\"" + spec.name + "\" is missing";
    spec.shape.insert(spec.shape.begin(), 3);
    spec.range.clear();
    if (const auto problem = fits(out.at(spec.name), spec); !problem.empty()) return problem;
  }
  return {};
}

std::string encodes_alone(const Encoder& encoder, const Batch& data) {
  const Batch whole = encoded(encoder, data), one = encoded(encoder, data.slice(1, 2));
  for (const TensorSpec& spec : encoder.makes())
    if (const auto problem = difference(one.at(spec.name), whole.at(spec.name).slice(0, 1, 2), 1e-5); !problem.empty())
      return "\"" + spec.name + "\" " + problem;
  return {};
}

std::string decodes(const Encoder& encoder, const Batch& data) {
  const Batch out = encoded(encoder, data);
  auto ctx = context(at::kFloat);
  const Tensor picture = encoder.decode(out.at("clean"), ctx);
  if (picture.sizes() != data.at("image").sizes()) return "it is " + shape_text(picture.sizes());
  return not_finite(picture);
}

}  // namespace

Report check_source(const std::string& path, const OptionValues& options, const std::string& folder) {
  Report report("data " + path);
  for (const SplitOf split : {SplitOf::train, SplitOf::validation})
    SourceTest(path, options, {.split = split, .folder = folder}).run(report);
  return report;
}

Report check_encoder(const std::string& path, const TensorSpecs& data, const OptionValues& options) {
  Report report("encoder " + path);
  std::shared_ptr<Encoder> encoder;
  report.check("it can be made", [&] { return encoder = make<Encoder>(path, options, {data}), std::string(); });
  if (!encoder) return report;
  const Batch batch = data_batch(data);
  report.check("it makes what makes() says", [&] { return encodes(*encoder, batch); });
  report.check("a sample alone is encoded as in a batch", [&] { return encodes_alone(*encoder, batch); });
  report.check("equal encoders have equal fingerprints", [&] {
    const auto again = make<Encoder>(path, options, {data});
    return std::string(!encoder->fingerprint().empty() && again->fingerprint() == encoder->fingerprint()
                           ? ""
                           : "they differ, or are empty");
  });
  if (encoder->decodes())
    report.check("decode gives pictures of the same size", [&] { return decodes(*encoder, batch); });
  else
    report.skip("decode gives pictures of the same size", "decodes() is false");
  return report;
}

}  // namespace ditto::testing
