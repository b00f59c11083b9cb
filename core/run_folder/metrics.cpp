#include "core/run_folder/metrics.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace ditto::report {

namespace {

using Json = nlohmann::ordered_json;

// Gathers a line's fields; what JSON cannot say goes to "not_finite".
class Line {
 public:
  template <class T>
  Line& set(const char* name, const T& value) {
    json_[name] = value;
    return *this;
  }
  Line& set(const char* name, double value) {
    json_[name] = real(name, value);
    return *this;
  }
  Line& set(const char* name, const std::optional<double>& value) {
    json_[name] = value ? real(name, *value) : Json(nullptr);
    return *this;
  }
  Line& set(const char* name, const std::map<std::string, double>& values) {
    Json object = Json::object();
    for (const auto& [key, value] : values) object[key] = real(std::string(name) + "." + key, value);
    json_[name] = std::move(object);
    return *this;
  }
  Line& set(const char* name, const std::vector<std::optional<double>>& values) {
    Json list = Json::array();
    for (const auto& value : values)
      list.push_back(value ? real(std::string(name) + "." + std::to_string(list.size()), *value) : Json(nullptr));
    json_[name] = std::move(list);
    return *this;
  }

  std::string text() {
    if (!not_finite_.empty()) json_["not_finite"] = not_finite_;
    return json_.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

 private:
  Json real(const std::string& name, double value) {
    if (std::isfinite(value)) return value;
    not_finite_[name] = std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
    return nullptr;
  }
  Json json_ = Json::object(), not_finite_ = Json::object();
};

// {"tensor": {"all_reduce": {"forward": {"calls": 8, "bytes": 4096, "waited_s": 0.01}}}}
Json json_of(const std::vector<CommCount>& counts) {
  Json object = Json::object();
  for (const auto& count : counts)
    object[count.axes][count.op][count.pass] = {
        {"calls", count.calls}, {"bytes", count.bytes}, {"waited_s", count.waited_s}};
  return object;
}

// {"forward": {"attention": {"cpu_simd": 8}}}
Json json_of(const std::vector<KernelCount>& counts) {
  Json object = Json::object();
  for (const auto& count : counts) object[count.phase][count.op][count.variant] = count.calls;
  return object;
}

}  // namespace

std::string to_json(const StepRecord& record) {
  Line line;
  line.set("step", record.step).set("samples", record.samples).set("loss", record.loss);
  line.set("grad_norm", record.grad_norm).set("lr", record.lr).set("step_s", record.step_s);
  line.set("samples_per_s", record.samples_per_s).set("tflops", record.tflops).set("mfu", record.mfu);
  line.set("mem_bytes", record.mem_bytes).set("data_wait", record.data_wait);
  if (!record.losses.empty()) line.set("losses", record.losses);
  if (record.ema_decay) line.set("ema_decay", record.ema_decay);
  if (record.loss_scale) line.set("loss_scale", record.loss_scale);
  if (record.skipped) line.set("skipped", true);
  if (!record.mem.empty()) line.set("comm", json_of(record.comm)).set("mem", Json(record.mem));
  if (!record.kernels.empty()) line.set("kernels", json_of(record.kernels));
  return line.text();
}

std::string to_json(const ValidationRecord& record) {
  Line line;
  line.set("step", record.step).set("validation_loss", record.loss).set("strata", record.strata);
  if (!record.losses.empty()) line.set("losses", record.losses);
  if (!record.measures.empty()) line.set("measures", record.measures);
  line.set("samples", record.samples).set("seconds", record.seconds);
  if (!record.weights.empty()) line.set("weights", record.weights);
  return line.text();
}

MetricsLog::MetricsLog(const std::string& folder)
    : steps_(folder + "/metrics.jsonl"), validations_(folder + "/validation.jsonl") {}

CutBack MetricsLog::cut_back(int64_t step) {
  validations_.cut_back(step);
  return steps_.cut_back(step);
}

}  // namespace ditto::report
