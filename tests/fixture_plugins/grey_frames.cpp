// Nothing is wrong with it: to this decoder every file is two grey frames of 2 x 2.
#include <ditto/video_decoder.h>

namespace {

class Grey final : public ditto::Video {
 public:
  std::int64_t height() const override { return 2; }
  std::int64_t width() const override { return 2; }
  std::int64_t frames() override { return 2; }
  void decode(const ditto::FrameRange& range, const std::function<void(const ditto::VideoFrame&)>& take) override {
    const std::uint8_t pixels[2 * 2 * 3] = {};
    for (std::int64_t i = 0; i < range.count; ++i) take({pixels, 2, 2});
    decoded_ += range.count;
  }
  std::int64_t decoded() const override { return decoded_; }

 private:
  std::int64_t decoded_ = 0;
};

struct GreyFrames final : ditto::VideoDecoder {
  using Options = ditto::NoOptions;
  GreyFrames(const Options&, const Needs&) {}
  std::unique_ptr<ditto::Video> open(ditto::VideoFile) const override { return std::make_unique<Grey>(); }
};

}  // namespace

DITTO_PLUGIN(VideoDecoder, GreyFrames, "grey_frames", "1.0.0", "Apache-2.0", "decodes nothing")
