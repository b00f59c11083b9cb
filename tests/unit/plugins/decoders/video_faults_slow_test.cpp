// Claim (failures): Video files changed at random: never a crash, a hang or an error of another kind.
#include <chrono>
#include <random>

#include "tests/unit/plugins/decoders/video_faults.h"

TEST_CASE("forty mutations of each video are read, or named") {
  const auto decoder = ditto::test::video_decoder();
  if (!decoder) return;
  std::mt19937 draws(7);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(draws()) % n; };
  int named = 0, all = 0;
  for (const auto& entry : std::filesystem::directory_iterator(ditto::test::golden_video(""))) {
    const auto extension = entry.path().extension();
    if (extension == ".json" || extension == ".safetensors") continue;
    CAPTURE(entry.path().filename().string());
    const auto whole = ditto::test::read_text(entry.path());
    for (int i = 0; i < 40; ++i) {
      auto bytes = whole;
      switch (i % 4) {
        case 0: bytes.resize(below(bytes.size())); break;
        case 1:
          for (int n = 0; n < 8; ++n) bytes[below(bytes.size())] ^= static_cast<char>(1 << below(8));
          break;
        case 2: std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(below(bytes.size() - 64)), 64, '\xff'); break;
        default: bytes.erase(below(bytes.size() - 64), 1 + below(64));
      }
      const auto began = std::chrono::steady_clock::now();
      named += ditto::test::reads_or_says(*decoder, bytes).empty() ? 0 : 1;
      CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(20));
      ++all;
    }
  }
  MESSAGE(named << " of " << all << " were named");
  CHECK(named > all / 3);
}
