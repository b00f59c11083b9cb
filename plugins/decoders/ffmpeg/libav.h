// FFmpeg's libraries: what they own is freed, and what they say becomes part of an error.
#pragma once

#include <memory>
#include <string>

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/display.h>
#include <libavutil/opt.h>
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>
}

namespace ffmpeg {

struct Freed {
  void operator()(AVPacket* packet) const { av_packet_free(&packet); }
  void operator()(AVFrame* frame) const { av_frame_free(&frame); }
  void operator()(AVCodecContext* codec) const { avcodec_free_context(&codec); }
  void operator()(SwsContext* sws) const { sws_freeContext(sws); }
};
template <class T>
using Held = std::unique_ptr<T, Freed>;

// Once a process: their messages go to `reason`, and no single piece of memory is above 256 MiB.
void set_up_libraries();

// What the libraries said last in this thread of what went wrong, else what the code means; "" for 0.
std::string reason(int code);
void forget_reasons();

}  // namespace ffmpeg
