#include "container.h"

#include <algorithm>
#include <new>
#include <string_view>

#include <ditto/error.h>

namespace ffmpeg {

namespace {

using ditto::Error;
using ditto::ErrorKind;

constexpr const char* kContainers = "MP4, MOV, Matroska, WebM, AVI, MPEG-PS or MPEG-TS";
// By their names in libavformat. Playlists, which open other files and addresses, are none of them.
constexpr const char* kFormats = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpeg,mpegts";
constexpr std::size_t kBuffer = 64 << 10;
constexpr std::int64_t kProbed = 4 << 20;  // bytes for what the header leaves open
constexpr std::uint64_t kTimesRead = 64;   // a damaged index may send the reader back again and again
constexpr std::size_t kReadOver = 64;      // packets that are read and dropped rather than sought behind

AVCodecID known_codec(AVCodecID id) {
  switch (id) {
    case AV_CODEC_ID_H264:
    case AV_CODEC_ID_HEVC:
    case AV_CODEC_ID_VP8:
    case AV_CODEC_ID_VP9:
    case AV_CODEC_ID_AV1:
    case AV_CODEC_ID_MPEG1VIDEO:
    case AV_CODEC_ID_MPEG2VIDEO:
    case AV_CODEC_ID_MPEG4:
    case AV_CODEC_ID_MJPEG:
    case AV_CODEC_ID_FFV1:
    case AV_CODEC_ID_PRORES:
    case AV_CODEC_ID_RAWVIDEO: return id;
    default: return AV_CODEC_ID_NONE;
  }
}

int open_nothing(AVFormatContext*, AVIOContext**, const char*, int, AVDictionary**) { return AVERROR(EPERM); }

// VP8 alone keeps frames that are only referred to in packets of their own.
bool is_shown(const AVPacket& packet, AVCodecID codec) {
  if ((packet.flags & AV_PKT_FLAG_DISCARD) || packet.size == 0) return false;
  return codec != AV_CODEC_ID_VP8 || (packet.data[0] & 0x10);
}

}  // namespace

Container::Container(ditto::VideoFile file, const ditto::VideoDecoder::Needs& limits)
    : file_(std::move(file)), limits_(limits) {
  try {
    open();
  } catch (...) {
    close();
    throw;
  }
}

Container::~Container() { close(); }

void Container::fail(const std::string& what, int code) const {
  if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
  const auto why = reason(code);
  throw Error(ErrorKind::data, file_.place, what + (why.empty() ? "" : " (" + why + ")"));
}

int Container::read_bytes(void* self, std::uint8_t* into, int bytes) {
  auto& own = *static_cast<Container*>(self);
  const auto there = own.file_.size - std::min(own.offset_, own.file_.size);
  const auto count = std::min<std::uint64_t>(there, static_cast<std::uint64_t>(bytes));
  if (count == 0) return AVERROR_EOF;
  own.bytes_read_ += count;
  if (own.bytes_read_ / kTimesRead > own.file_.size + kBuffer) {
    av_log(nullptr, AV_LOG_ERROR, "its index leads back and forth");
    return AVERROR_INVALIDDATA;
  }
  try {
    own.file_.read(own.offset_, std::as_writable_bytes(std::span(into, count)));
  } catch (...) {
    own.thrown_ = std::current_exception();
    return AVERROR(EIO);
  }
  own.offset_ += count;
  return static_cast<int>(count);
}

std::int64_t Container::seek_bytes(void* self, std::int64_t offset, int whence) {
  auto& own = *static_cast<Container*>(self);
  const auto size = static_cast<std::int64_t>(own.file_.size);
  whence &= ~AVSEEK_FORCE;
  if (whence == AVSEEK_SIZE) return size;
  if (whence == SEEK_CUR) offset += static_cast<std::int64_t>(own.offset_);
  if (whence == SEEK_END) offset += size;
  if (offset < 0) return AVERROR(EINVAL);
  own.offset_ = static_cast<std::uint64_t>(offset);
  return offset;
}

void Container::open() {
  forget_reasons();
  offset_ = 0;
  at_ = 0;
  auto* buffer = static_cast<unsigned char*>(av_malloc(kBuffer));
  auto* io = buffer ? avio_alloc_context(buffer, kBuffer, 0, this, read_bytes, nullptr, seek_bytes) : nullptr;
  format_ = io ? avformat_alloc_context() : nullptr;
  if (!format_) {
    av_free(buffer);
    avio_context_free(&io);
    throw std::bad_alloc();
  }
  format_->pb = io;
  format_->io_open = open_nothing;
  format_->probesize = kProbed;
  format_->flags |= AVFMT_FLAG_CUSTOM_IO;
  av_opt_set(format_, "format_whitelist", kFormats, 0);
  av_opt_set(format_, "protocol_whitelist", "none", 0);
  if (const int code = avformat_open_input(&format_, nullptr, nullptr, nullptr); code < 0) {
    av_freep(&io->buffer);  // format_ is freed, and not what it did not make
    avio_context_free(&io);
    if (thrown_ || file_.size > 0) fail("cannot be read as " + std::string(kContainers), code);
    throw Error(ErrorKind::data, file_.place, "is empty; expected " + std::string(kContainers));
  }
  choose_stream();
}

void Container::close() {
  held_.reset();
  if (!format_) return;
  auto* io = format_->pb;
  avformat_close_input(&format_);
  av_freep(&io->buffer);
  avio_context_free(&io);
}

void Container::choose_stream() {
  const auto choose = [this] {
    stream_ = nullptr;
    for (unsigned i = 0; i < format_->nb_streams; ++i) {
      auto* stream = format_->streams[i];
      const bool is_picture = stream->disposition & (AV_DISPOSITION_ATTACHED_PIC | AV_DISPOSITION_TIMED_THUMBNAILS);
      if (!stream_ && !is_picture && stream->codecpar->codec_type == AVMEDIA_TYPE_VIDEO)
        stream_ = stream;
      else
        stream->discard = AVDISCARD_ALL;
    }
  };
  choose();
  // Others' headers say little; the first packets are read for it.
  const std::string_view name = format_->iformat->name;
  const bool says_all = name.starts_with("mov,") || name.starts_with("matroska,");
  if (!says_all || !stream_ || stream_->codecpar->width < 1) {
    if (const int code = avformat_find_stream_info(format_, nullptr); code < 0)
      fail("holds nothing that can be read", code);
    choose();
  }
  if (!stream_) fail("has no video in it", 0);
  const auto& codec = *stream_->codecpar;
  if (known_codec(codec.codec_id) == AV_CODEC_ID_NONE)
    throw Error(ErrorKind::data, file_.place, std::string("is coded as ") + avcodec_get_name(codec.codec_id),
                "code it as H.264, HEVC, VP8, VP9, AV1, MPEG-1, -2 or -4, Motion JPEG, FFV1 or ProRes");
  if (codec.width < 1 || codec.height < 1) fail("says no size of its frames", 0);
  if (std::int64_t{codec.width} * codec.height > limits_.most_pixels)
    throw Error(ErrorKind::data, file_.place,
                "says that its frames are " + std::to_string(codec.height) + " x " + std::to_string(codec.width) +
                    " (height x width); at most " + std::to_string(limits_.most_pixels) + " pixels are decoded");
}

const std::int32_t* Container::display_matrix() const {
  std::size_t bytes = 0;
  const auto* matrix = av_stream_get_side_data(stream_, AV_PKT_DATA_DISPLAYMATRIX, &bytes);
  return bytes >= 9 * sizeof(std::int32_t) ? reinterpret_cast<const std::int32_t*>(matrix) : nullptr;
}

const std::vector<CodedFrame>& Container::coded() {
  if (coded_.empty() && !take_index()) read_through();
  if (coded_.empty()) fail("has no frames", 0);
  return coded_;
}

// MP4's header lists all frames; other containers list those that may be sought, or what they please.
bool Container::take_index() {
  const int count = avformat_index_get_entries_count(stream_);
  if (!std::string_view(format_->iformat->name).starts_with("mov,") || count < 1 || count != stream_->nb_frames ||
      count > limits_.most_frames)
    return false;
  for (int i = 0; i < count; ++i) {
    const auto* entry = avformat_index_get_entry(stream_, i);
    coded_.push_back({entry->pos, entry->timestamp, AV_NOPTS_VALUE, (entry->flags & AVINDEX_KEYFRAME) != 0,
                      !(entry->flags & AVINDEX_DISCARD_FRAME) && entry->size > 0});
  }
  return true;
}

void Container::read_through() {
  if (at_ > 0) {
    close();
    open();
  }
  while (const auto packet = next()) {
    if (static_cast<std::int64_t>(coded_.size()) >= limits_.most_frames)
      fail("has more than " + std::to_string(limits_.most_frames) + " frames", 0);
    coded_.push_back({packet->pos, packet->dts, packet->pts, (packet->flags & AV_PKT_FLAG_KEY) != 0,
                      is_shown(*packet, codec().codec_id)});
  }
}

Held<AVPacket> Container::next() {
  if (held_) {
    ++at_;
    return std::move(held_);
  }
  Held<AVPacket> packet(av_packet_alloc());
  if (!packet) throw std::bad_alloc();
  for (;;) {
    const int code = av_read_frame(format_, packet.get());
    if (code == AVERROR_EOF && !thrown_) return nullptr;
    if (code < 0) fail("cannot be read on", code);
    if (packet->stream_index == stream_->index) break;
    av_packet_unref(packet.get());
  }
  ++at_;
  return packet;
}

// Whether the next packet is that one: told by its place in the file, where no other has the same.
bool Container::seek_near(std::size_t number) {
  const auto& wanted = coded_[number];
  const auto last = std::find_if(coded_.begin() + static_cast<std::ptrdiff_t>(number) + 1, coded_.end(),
                                 [](const CodedFrame& frame) { return frame.is_key; }) -
                    1;
  const auto time = wanted.pts != AV_NOPTS_VALUE ? wanted.pts : last->dts;  // MP4 seeks by dts what is shown by then
  const bool is_alone = wanted.position >= 0 && (number == 0 || coded_[number - 1].position != wanted.position);
  if (!is_alone || time == AV_NOPTS_VALUE) return false;
  if (av_seek_frame(format_, stream_->index, time, AVSEEK_FLAG_BACKWARD) < 0) return false;
  while (auto packet = next()) {
    if (packet->pos > wanted.position) return false;
    if (packet->pos < wanted.position) continue;
    held_ = std::move(packet);
    at_ = number;
    return true;
  }
  return false;
}

void Container::go_to(std::size_t number) {
  const bool is_near = number >= at_ && number - at_ <= kReadOver;
  if (!is_near && !seek_near(number)) {
    close();
    open();
  }
  while (at_ < number)
    if (!next()) fail("ends at coded frame " + std::to_string(at_) + " of " + std::to_string(coded_.size()), 0);
}

}  // namespace ffmpeg
