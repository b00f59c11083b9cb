// TensorBoard event files: the records that a training run writes, and a reader for checking them.
// A file is a series of TFRecords (length, masked CRC-32C of it, protobuf message, masked CRC-32C of that).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace ditto::formats {

using HParam = std::variant<bool, double, std::string>;

// One file in a run's folder, named events.out.tfevents.SECONDS.HOST.PID.N. TensorBoard merges all files of a folder,
// so a resumed run opens a new one. Throws Error(data) with the path and the system's reason.
class EventWriter {
 public:
  // `first_step`: the first step that this run will write; more than 0 after a resume. TensorBoard then forgets what
  // older files in the folder say of that step and later ones.
  explicit EventWriter(const std::string& folder, std::int64_t first_step = 0);
  ~EventWriter();
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  void scalar(std::string_view tag, std::int64_t step, double value);  // stored as fp32
  // `png` is a whole PNG file; width, height and channels are what it holds.
  void image(std::string_view tag, std::int64_t step, int width, int height, int channels,
             std::span<const std::byte> png);
  void text(std::string_view tag, std::int64_t step, std::string_view markdown);
  // What a run is, for the tab HPARAMS, by name.
  void hparams(std::int64_t step, const std::map<std::string, HParam>& values);
  void flush();  // to the operating system
  const std::string& path() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct EventRecord {
  enum class Kind { version, session_start, scalar, image, text, hparams, other };
  Kind kind = Kind::other;
  double wall_time = 0;
  std::int64_t step = 0;
  std::string tag;
  float scalar = 0;
  std::string bytes;  // text, PNG, or the version
  int width = 0, height = 0;
  std::map<std::string, HParam> hparams;
};

struct EventFile {
  std::vector<EventRecord> records;
  std::string damage;  // empty, or what is wrong and at which byte (a torn last record is damage too)
};

EventFile read_events(const std::string& path);  // Error(data) if the file cannot be read

}  // namespace ditto::formats
