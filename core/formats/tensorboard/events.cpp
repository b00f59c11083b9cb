#include "core/formats/tensorboard/events.h"

#include <ditto/error.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "core/formats/file.h"
#include "core/formats/tensorboard/tfrecord.h"
#include "events.pb.h"

namespace ditto::formats {

namespace {

constexpr const char* kVersion = "brain.Event:2";  // from 2 on, a session's start makes readers forget later steps
constexpr std::string_view kPrefix = "events.out.tfevents.";
constexpr int kFloatTensor = 1, kStringTensor = 7;
constexpr const char *kHParams = "hparams", *kHParamsTag = "_hparams_/session_start_info";

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

// TensorBoard reads a folder's files in the order of their names, so a new one must come after those that are there,
// even when two runs start in one second.
std::int64_t next_time(const std::string& folder) {
  auto time = static_cast<std::int64_t>(now());
  std::error_code ignored;
  for (const auto& file : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = file.path().filename().string();
    std::int64_t other = 0;
    if (!name.starts_with(kPrefix)) continue;
    const char* end = name.data() + name.size();
    if (std::from_chars(name.data() + kPrefix.size(), end, other).ec == std::errc() && other >= time) time = other + 1;
  }
  return time;
}

std::string file_name(const std::string& folder) {
  static std::atomic<int> count{0};
  char host[256] = "";
  if (::gethostname(host, sizeof host - 1) != 0 || host[0] == '\0') std::strcpy(host, "host");
  char time[24];
  std::snprintf(time, sizeof time, "%010lld", static_cast<long long>(next_time(folder)));
  const std::string name =
      std::string(kPrefix) + time + "." + host + "." + std::to_string(::getpid()) + "." + std::to_string(count++);
  return (std::filesystem::path(folder) / name).string();
}

}  // namespace

struct EventWriter::State {
  std::string path;
  std::FILE* file = nullptr;

  ~State() {
    if (file != nullptr) std::fclose(file);
  }

  void check(bool good) const {
    if (!good) throw Error(ErrorKind::data, path, std::string("cannot be written: ") + std::strerror(errno));
  }

  void add(pb::Event event, std::int64_t step) {
    event.set_wall_time(now());
    event.set_step(step);
    const std::string bytes = tfrecord(event.SerializeAsString());
    check(std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size());
  }
};

EventWriter::EventWriter(const std::string& folder, std::int64_t first_step) : state_(std::make_unique<State>()) {
  state_->path = file_name(folder);
  state_->file = std::fopen(state_->path.c_str(), "wbe");
  state_->check(state_->file != nullptr);
  pb::Event version;
  version.set_file_version(kVersion);
  state_->add(std::move(version), 0);
  // The first run writes a start too: readers take only a second one for a restart.
  pb::Event start;
  start.mutable_session_log()->set_status(pb::SessionLog::START);
  state_->add(std::move(start), first_step);
  flush();
}

EventWriter::~EventWriter() = default;

void EventWriter::scalar(std::string_view tag, std::int64_t step, double value) {
  pb::Event event;
  auto* entry = event.mutable_summary()->add_value();
  entry->set_tag(std::string(tag));
  entry->set_simple_value(static_cast<float>(value));
  state_->add(std::move(event), step);
}

void EventWriter::image(std::string_view tag, std::int64_t step, int width, int height, int channels,
                        std::span<const std::byte> png) {
  pb::Event event;
  auto* entry = event.mutable_summary()->add_value();
  entry->set_tag(std::string(tag));
  auto* image = entry->mutable_image();
  image->set_width(width);
  image->set_height(height);
  image->set_colorspace(channels);
  image->set_encoded_image_string(png.data(), png.size());
  state_->add(std::move(event), step);
}

void EventWriter::text(std::string_view tag, std::int64_t step, std::string_view markdown) {
  pb::Event event;
  auto* entry = event.mutable_summary()->add_value();
  entry->set_tag(std::string(tag));
  entry->mutable_metadata()->mutable_plugin_data()->set_plugin_name("text");
  auto* tensor = entry->mutable_tensor();
  tensor->set_dtype(kStringTensor);
  tensor->mutable_tensor_shape()->add_dim()->set_size(1);
  tensor->add_string_val(std::string(markdown));
  state_->add(std::move(event), step);
}

void EventWriter::hparams(std::int64_t step, const std::map<std::string, HParam>& values) {
  pb::HParamsData data;
  auto* session = data.mutable_session_start_info();
  session->set_start_time_secs(now());
  for (const auto& [name, value] : values) {
    auto& entry = (*session->mutable_hparams())[name];
    if (const auto* truth = std::get_if<bool>(&value)) entry.set_bool_value(*truth);
    if (const auto* number = std::get_if<double>(&value)) entry.set_number_value(*number);
    if (const auto* text = std::get_if<std::string>(&value)) entry.set_string_value(*text);
  }
  pb::Event event;
  auto* entry = event.mutable_summary()->add_value();
  entry->set_tag(kHParamsTag);
  auto* plugin = entry->mutable_metadata()->mutable_plugin_data();
  plugin->set_plugin_name(kHParams);
  plugin->set_content(data.SerializeAsString());
  auto* nothing = entry->mutable_tensor();  // readers drop a summary without a value
  nothing->set_dtype(kFloatTensor);
  nothing->mutable_tensor_shape()->add_dim();
  state_->add(std::move(event), step);
}

void EventWriter::flush() { state_->check(std::fflush(state_->file) == 0); }

const std::string& EventWriter::path() const { return state_->path; }

namespace {

void read_hparams(const std::string& content, EventRecord& record) {
  pb::HParamsData data;
  if (!data.ParseFromString(content)) return;
  record.kind = EventRecord::Kind::hparams;
  for (const auto& [name, value] : data.session_start_info().hparams()) {
    if (value.kind_case() == pb::HParam::kBoolValue) record.hparams[name] = value.bool_value();
    if (value.kind_case() == pb::HParam::kNumberValue) record.hparams[name] = value.number_value();
    if (value.kind_case() == pb::HParam::kStringValue) record.hparams[name] = value.string_value();
  }
}

void read_value(const pb::Summary::Value& value, EventRecord& record) {
  record.tag = value.tag();
  if (value.metadata().plugin_data().plugin_name() == kHParams)
    return read_hparams(value.metadata().plugin_data().content(), record);
  if (value.has_image()) {
    record.kind = EventRecord::Kind::image;
    record.bytes = value.image().encoded_image_string();
    record.width = value.image().width();
    record.height = value.image().height();
  } else if (value.has_tensor() && value.metadata().plugin_data().plugin_name() == "text") {
    record.kind = EventRecord::Kind::text;
    if (value.tensor().string_val_size() > 0) record.bytes = value.tensor().string_val(0);
  } else if (value.value_case() == pb::Summary::Value::kSimpleValue) {
    record.kind = EventRecord::Kind::scalar;
    record.scalar = value.simple_value();
  }
}

void read_event(const pb::Event& event, std::vector<EventRecord>& records) {
  EventRecord record;
  record.wall_time = event.wall_time();
  record.step = event.step();
  if (event.has_summary()) {
    for (const auto& value : event.summary().value()) {
      EventRecord one = record;
      read_value(value, one);
      records.push_back(std::move(one));
    }
    return;
  }
  if (event.what_case() == pb::Event::kFileVersion) {
    record.kind = EventRecord::Kind::version;
    record.bytes = event.file_version();
  } else if (event.has_session_log() && event.session_log().status() == pb::SessionLog::START) {
    record.kind = EventRecord::Kind::session_start;
  }
  records.push_back(std::move(record));
}

}  // namespace

EventFile read_events(const std::string& path) {
  const std::string bytes = read_file(path, ErrorKind::data);
  EventFile result;
  for (std::uint64_t at = 0; at < bytes.size();) {
    const std::uint64_t start = at;
    std::string_view record;
    result.damage = next_tfrecord(bytes, at, record);
    if (!result.damage.empty()) return result;
    pb::Event event;
    if (!event.ParseFromArray(record.data(), static_cast<int>(record.size()))) {
      result.damage = "a record is no event message at byte " + std::to_string(start);
      return result;
    }
    read_event(event, result.records);
  }
  return result;
}

}  // namespace ditto::formats
