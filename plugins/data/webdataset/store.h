// Where a set's files lie: on a disk, or on an HTTP server that answers requests for ranges, as S3 and stores like it
// do.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <ditto/formats/file.h>

namespace webdataset {

bool is_url(std::string_view path);  // http://… or https://…

// `path` as it is if it is absolute or a URL, otherwise in `folder`, which may be a URL.
std::string joined(const std::string& folder, const std::string& path);

// Files and URLs alike, from any number of threads.
//
// What fails in passing on a server is tried again, `retries` times without a byte of progress: refused and broken
// connections, silence, 5xx, 408 and 429; after 0.1 s, 0.2 s, 0.4 s … up to 10 s, or as long as the server asks for, up
// to 30 s. A transfer that was cut goes on where it stopped. All else, and the last of these, is Error(data) with the
// address, and the server's status or libcurl's words. So is a file that changes while it is open.
struct Store {
  double timeout_s = 10;  // to connect, and without a byte
  std::int64_t retries = 5;
  std::string region;  // requests are signed for S3, with the environment's AWS_ACCESS_KEY_ID and so on; empty: not

  std::shared_ptr<const ditto::formats::RandomFile> open(const std::string& path) const;
  // With read-ahead: for who reads it once, from its begin to its end.
  std::shared_ptr<const ditto::formats::RandomFile> open_to_scan(const std::string& path) const;
  bool has(const std::string& path) const;  // a regular file; on a server, what it does not answer with 404
  // The same, but 403 too is no file: so S3 answers who may not list what is there, of a file that is not.
  bool shows(const std::string& path) const;
  std::string read(const std::string& path, std::uint64_t most) const;  // all of a small file
};

}  // namespace webdataset
