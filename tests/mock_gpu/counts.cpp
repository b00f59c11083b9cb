#include "tests/mock_gpu/counts.h"

#include <cstdlib>
#include <fstream>
#include <string>

namespace mock_gpu {

namespace {

void write() {
  const char* path = std::getenv("MOCK_GPU_COUNTS");
  const auto& all = counts();
  if (!path || all.launches == 0) return;
  const char* rank = std::getenv("RANK");
  std::ofstream file(rank ? std::string(path) + "." + rank : path);
  file << "{\"launches\": " << all.launches << ", \"uploads\": " << all.uploads
       << ", \"uploaded_bytes\": " << all.uploaded_bytes << ", \"downloads\": " << all.downloads
       << ", \"downloaded_bytes\": " << all.downloaded_bytes << ", \"host_reads\": " << all.host_reads
       << ", \"attention_pairs\": " << all.attention_pairs << ", \"waits\": " << all.waits
       << ", \"waits_beside\": " << all.waits_beside << "}\n";
}

const struct AtEnd {
  ~AtEnd() { write(); }
} at_end;

}  // namespace

Counts& counts() {
  static auto* all = new Counts;  // threads may count until the process is gone
  return *all;
}

}  // namespace mock_gpu
