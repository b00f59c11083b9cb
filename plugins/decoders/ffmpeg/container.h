// A file's coded frames in the order of decoding: which there are, and the packets from any of them on.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <ditto/video_decoder.h>

#include "libav.h"

namespace ffmpeg {

struct CodedFrame {
  std::int64_t position;  // in the file; -1: not known
  std::int64_t dts, pts;  // AV_NOPTS_VALUE: not known
  bool is_key, is_shown;
};

class Container {
 public:
  // Reads the header. Throws Error(data) for what is no video of a kind that is read here.
  Container(ditto::VideoFile file, const ditto::VideoDecoder::Needs& limits);
  ~Container();
  Container(const Container&) = delete;
  Container& operator=(const Container&) = delete;

  const AVCodecParameters& codec() const { return *stream_->codecpar; }
  const std::string& place() const { return file_.place; }
  // Its display matrix, nine numbers; nullptr: none.
  const std::int32_t* display_matrix() const;

  // From the file's index, or, where that is not of all frames, read through once.
  const std::vector<CodedFrame>& coded();
  // The packet of the coded frame `number` is what next() gives next.
  void go_to(std::size_t number);
  Held<AVPacket> next();  // null after the last

  // Throws Error(data) at the file's place with what the libraries or the reading of bytes had to say.
  [[noreturn]] void fail(const std::string& what, int code) const;

 private:
  static int read_bytes(void* self, std::uint8_t* into, int bytes);
  static std::int64_t seek_bytes(void* self, std::int64_t offset, int whence);
  void open();
  void close();
  void choose_stream();
  bool take_index();
  void read_through();
  bool seek_near(std::size_t number);

  ditto::VideoFile file_;
  ditto::VideoDecoder::Needs limits_;
  AVFormatContext* format_ = nullptr;
  AVStream* stream_ = nullptr;
  std::uint64_t offset_ = 0, bytes_read_ = 0;
  mutable std::exception_ptr thrown_;  // by file_.read, on its way through C
  std::vector<CodedFrame> coded_;
  Held<AVPacket> held_;  // read, and not yet given
  std::size_t at_ = 0;   // of what next() gives
};

}  // namespace ffmpeg
