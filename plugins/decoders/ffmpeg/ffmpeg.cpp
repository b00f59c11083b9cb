// Video files by FFmpeg's libraries. Of the coded frames those are decoded that the wanted ones depend on: from the key
// frame before on, in the order of decoding, up to the last wanted one, but for those that no other refers to; by one
// thread.
//
// A run of coded frames from a key frame to the next holds as many shown frames, which follow those of the runs before:
// so a frame's number says its run, and its place among the run's times which coded frame it is.
#include <algorithm>
#include <iterator>
#include <limits>

#include <ditto/error.h>
#include <ditto/video_decoder.h>

#include "container.h"
#include "upright.h"

namespace ffmpeg {

namespace {

using ditto::Error;
using ditto::ErrorKind;
using ditto::VideoFrame;

constexpr std::size_t kRunBytes = std::size_t{256} << 20;  // of packets that are held at once

class File final : public ditto::Video {
 public:
  File(ditto::VideoFile file, const ditto::VideoDecoder::Needs& limits)
      : container_(std::move(file), limits),
        turn_(Turn::of(container_.display_matrix(), container_.place())),
        upright_(turn_, container_.place()) {
    open_codec(limits);
  }

  std::int64_t height() const override {
    return turn_.transposed ? container_.codec().width : container_.codec().height;
  }
  std::int64_t width() const override {
    return turn_.transposed ? container_.codec().height : container_.codec().width;
  }
  std::int64_t decoded() const override { return decoded_; }

  std::int64_t frames() override {
    find_runs();
    return runs_.back().shown;
  }

  void decode(const ditto::FrameRange& range, const std::function<void(const VideoFrame&)>& take) override {
    if (range.first < 0 || range.count < 1 || range.interval < 1)
      throw Error(ErrorKind::data, container_.place(), "is asked for no frames");
    const auto there = frames();
    // Not (count - 1) * interval, which may overflow.
    if (range.first >= there || (range.count - 1) > (there - 1 - range.first) / range.interval)
      throw Error(ErrorKind::data, container_.place(),
                  "has " + std::to_string(there) + " frames; " + std::to_string(range.count) + " of them, each " +
                      std::to_string(range.interval) + " further" +
                      (range.first > 0 ? ", from frame " + std::to_string(range.first) + " on" : "") + ", are wanted");
    std::vector<Wanted> wanted;
    for (std::int64_t i = 0; i < range.count; ++i) {
      const auto number = range.first + i * range.interval;
      const auto after = std::upper_bound(runs_.begin(), runs_.end(), number,
                                          [](std::int64_t n, const Run& run) { return n < run.shown; });
      const auto run = static_cast<std::size_t>(after - runs_.begin()) - 1;
      if (wanted.empty() || wanted.back().run != run) wanted.push_back({run, {}});
      wanted.back().numbers.push_back(number);
    }
    auto packets = read_run(wanted.front());
    for (std::size_t i = 0; i < wanted.size();) i = decode_stretch(wanted, i, packets, take);
  }

 private:
  struct Run {
    std::size_t coded;   // its first, a key frame
    std::int64_t shown;  // frames before it
  };
  struct Wanted {
    std::size_t run;
    std::vector<std::int64_t> numbers;  // of its frames
  };
  struct Packets {
    std::vector<Held<AVPacket>> list;
    std::vector<std::int64_t> times;  // of those that are shown, sorted
    std::size_t bytes = 0;
    bool has_times = true;  // each another one
    bool is_whole = false;  // to the run's end
  };

  void open_codec(const ditto::VideoDecoder::Needs& limits) {
    const auto* decoder = avcodec_find_decoder(container_.codec().codec_id);
    if (!decoder)
      container_.fail(std::string("is coded as ") + avcodec_get_name(container_.codec().codec_id) +
                          ", which FFmpeg's libraries here do not decode",
                      0);
    codec_.reset(avcodec_alloc_context3(decoder));
    if (!codec_) throw std::bad_alloc();
    codec_->thread_count = 1;
    codec_->flags |= AV_CODEC_FLAG_BITEXACT | AV_CODEC_FLAG_OUTPUT_CORRUPT;
    codec_->max_pixels = limits.most_pixels;
    codec_->err_recognition = AV_EF_CRCCHECK | AV_EF_BITSTREAM | AV_EF_BUFFER;
    int code = avcodec_parameters_to_context(codec_.get(), &container_.codec());
    if (code >= 0) code = avcodec_open2(codec_.get(), decoder, nullptr);
    if (code < 0) container_.fail("cannot be decoded", code);
  }

  // The last is none: where all end.
  void find_runs() {
    if (!runs_.empty()) return;
    const auto& coded = container_.coded();
    std::int64_t shown = 0;
    for (std::size_t i = 0; i < coded.size(); ++i) {
      if (i == 0 || coded[i].is_key) runs_.push_back({i, shown});
      shown += coded[i].is_shown ? 1 : 0;
    }
    runs_.push_back({coded.size(), shown});
  }

  // The run's packets: all, or up to that from which the times of the wanted frames are certain, since what follows is
  // not shown before it is decoded.
  Packets read_run(std::size_t run, std::size_t places) {
    Packets packets;
    container_.go_to(runs_[run].coded);
    for (auto i = runs_[run].coded; i < runs_[run + 1].coded; ++i) {
      auto packet = container_.next();
      if (!packet) break;
      const auto dts = packet->dts, pts = packet->pts;
      const auto position = container_.coded()[i].position;
      if (position >= 0 && packet->pos != position) container_.fail("has other frames than its index says", 0);
      if (container_.coded()[i].is_shown) {
        const auto at = std::lower_bound(packets.times.begin(), packets.times.end(), pts);
        packets.has_times &= pts != AV_NOPTS_VALUE && (at == packets.times.end() || *at != pts);
        packets.times.insert(at, pts);
      }
      packets.bytes += static_cast<std::size_t>(packet->size);
      if (packets.bytes > kRunBytes) container_.fail("has over 256 MiB from one key frame to the next", 0);
      packets.list.push_back(std::move(packet));
      if (packets.has_times && dts != AV_NOPTS_VALUE && packets.times.size() >= places &&
          packets.times[places - 1] <= dts)
        return packets;
    }
    packets.is_whole = true;
    return packets;
  }
  Packets read_run(const Wanted& wanted) {
    return read_run(wanted.run, static_cast<std::size_t>(wanted.numbers.back() - runs_[wanted.run].shown) + 1);
  }
  Packets read_whole(std::size_t run) { return read_run(run, std::numeric_limits<std::size_t>::max()); }

  // When each wanted frame is shown; empty where the file does not tell.
  std::vector<std::int64_t> times_of(const Wanted& wanted, const Packets& packets) const {
    std::vector<std::int64_t> times;
    if (!packets.has_times) return times;
    for (const auto number : wanted.numbers) {
      const auto place = static_cast<std::size_t>(number - runs_[wanted.run].shown);
      if (place >= packets.times.size()) missing(number);
      times.push_back(packets.times[place]);
    }
    return times;
  }

  // Whether one is shown before its run's key frame: then it depends on the run before, too (open groups of pictures).
  bool leads(const Wanted& wanted, const Packets& packets) const {
    const auto times = times_of(wanted, packets);
    return wanted.run > 0 && !times.empty() && times.front() < packets.list.front()->pts;
  }

  // Decodes wanted[i], and what follows as far as it depends on it. `packets` are those of its run, and afterwards
  // those of the run of the index that is returned.
  std::size_t decode_stretch(const std::vector<Wanted>& wanted, std::size_t i, Packets& packets,
                             const std::function<void(const VideoFrame&)>& take) {
    Stretch stretch{*this, take, runs_[wanted[i].run].shown};
    if (leads(wanted[i], packets)) stretch.feed(read_whole(wanted[i].run - 1).list);
    for (bool goes_on = true; goes_on;) {
      const auto& now = wanted[i];
      const auto times = times_of(now, packets);
      stretch.numbers.insert(stretch.numbers.end(), now.numbers.begin(), now.numbers.end());
      stretch.times.insert(stretch.times.end(), times.begin(), times.end());
      Packets next;
      goes_on = false;
      if (++i < wanted.size()) {
        next = read_run(wanted[i]);
        goes_on = wanted[i].run == now.run + 1 && leads(wanted[i], next);
      }
      if (goes_on && !packets.is_whole) packets = read_whole(now.run);
      while (!goes_on && !times.empty() && !std::binary_search(times.begin(), times.end(), packets.list.back()->pts))
        packets.list.pop_back();
      stretch.feed(packets.list);
      packets = std::move(next);
    }
    stretch.finish();
    return i;
  }

  // What the decoder gets from a key frame on, and which of its frames are taken.
  struct Stretch {
    File& file;
    const std::function<void(const VideoFrame&)>& take;
    std::int64_t next;  // number of the frame that comes next, for files without times
    std::vector<std::int64_t> numbers{}, times{};
    std::size_t taken = 0;

    ~Stretch() { avcodec_flush_buffers(file.codec_.get()); }

    void feed(const std::vector<Held<AVPacket>>& packets) {
      forget_reasons();
      for (const auto& packet : packets) {
        if (packet->size == 0) continue;  // it would end the stream
        if (times.empty() && taken == numbers.size() && taken > 0) return;
        ++file.decoded_;
        // What no other frame refers to, and nobody wants, the decoder looks at no further than its header.
        const bool is_wanted = times.empty() || std::binary_search(times.begin(), times.end(), packet->pts);
        file.codec_->skip_frame = is_wanted ? AVDISCARD_DEFAULT : AVDISCARD_NONREF;
        if (const int code = avcodec_send_packet(file.codec_.get(), packet.get()); code < 0)
          file.damaged(number(), code);
        receive();
      }
    }

    void finish() {
      if (taken < numbers.size()) {
        avcodec_send_packet(file.codec_.get(), nullptr);
        receive();
      }
      if (taken < numbers.size()) file.missing(number());
    }

    std::int64_t number() const { return taken < numbers.size() ? numbers[taken] : next; }

    void receive() {
      auto& frame = *file.frame_;
      for (;;) {
        const int code = avcodec_receive_frame(file.codec_.get(), &frame);
        if (code == AVERROR(EAGAIN) || code == AVERROR_EOF) return;
        if (code < 0) file.damaged(number(), code);
        const bool is_next = times.empty() ? next == number() : taken < times.size() && frame.pts == times[taken];
        if (is_next && taken < numbers.size()) {
          if ((frame.flags & AV_FRAME_FLAG_CORRUPT) || frame.decode_error_flags) file.damaged(number(), 0);
          take(file.upright_.of(frame));
          ++taken;
        }
        ++next;
      }
    }
  };

  [[noreturn]] void damaged(std::int64_t number, int code) const {
    container_.fail("frame " + std::to_string(number) + " is damaged, or one that it depends on", code);
  }
  [[noreturn]] void missing(std::int64_t number) const {
    container_.fail("frame " + std::to_string(number) + " is not there, though the file counts " +
                        std::to_string(runs_.back().shown),
                    0);
  }

  Container container_;
  Turn turn_;
  Upright upright_;
  Held<AVCodecContext> codec_;
  Held<AVFrame> frame_{av_frame_alloc()};
  std::vector<Run> runs_;
  std::int64_t decoded_ = 0;
};

class Decoder final : public ditto::VideoDecoder {
 public:
  struct Options {
    void read(ditto::OptionReader&) {}
  };
  Decoder(const Options&, const Needs& needs) : limits_(needs) { set_up_libraries(); }
  std::unique_ptr<ditto::Video> open(ditto::VideoFile file) const override {
    return std::make_unique<File>(std::move(file), limits_);
  }

 private:
  Needs limits_;
};

}  // namespace

}  // namespace ffmpeg

using ffmpeg::Decoder;

DITTO_PLUGIN(VideoDecoder, Decoder, "ffmpeg", "1.0.0", "Apache-2.0 AND GPL-2.0-or-later",
             "video files, by FFmpeg's libraries")
