#include "store.h"

#include <curl/curl.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include <ditto/error.h>
#include <ditto/text.h>

namespace webdataset {

namespace {

using ditto::Error;
using ditto::ErrorKind;
using ditto::formats::RandomFile;
using ditto::formats::RemoteBytes;

// Which answers say that a file is not there: none, 404, or 403 too.
enum class IfMissing { fail, allow, allow_hidden };

// S3 asks for a request's body's SHA-256: of no bytes.
constexpr const char* kEmptyBody =
    "x-amz-content-sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
constexpr long kNotFound = 404, kForbidden = 403;
constexpr double kFirstPause = 0.1, kLongestPause = 10, kLongestAsked = 30;
constexpr std::uint64_t kBlock = 256 << 10;  // read ahead

struct FreeList {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

bool says_missing(long status, IfMissing if_missing) {
  return (status == kNotFound && if_missing != IfMissing::fail) ||
         (status == kForbidden && if_missing == IfMissing::allow_hidden);
}

// One of a thread: its connections stay open between requests.
class Connection {
 public:
  Connection() {
    static const auto started = curl_global_init(CURL_GLOBAL_DEFAULT);
    curl_ = started == CURLE_OK ? curl_easy_init() : nullptr;
    if (curl_ == nullptr) throw Error(ErrorKind::data, "libcurl", "could not start");
  }
  ~Connection() { curl_easy_cleanup(curl_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  CURL* fresh() {
    curl_easy_reset(curl_);
    return curl_;
  }

 private:
  CURL* curl_ = nullptr;
};

Connection& connection() {
  thread_local Connection one;
  return one;
}

// One request for bytes [offset, offset + into.size()) of a file.
struct Request {
  std::uint64_t offset = 0;
  std::span<std::byte> into;

  std::size_t received = 0;
  std::optional<std::uint64_t> size;  // of the whole file, as the server says
  std::string etag, location;
  long status = 0;
  bool is_part = false;  // 206 for this offset
  double asked_pause = 0;
  std::string why;  // empty: the request was answered in full
};

std::string header_value(std::string_view line, std::string_view name) {
  if (line.size() <= name.size() || line[name.size()] != ':') return {};
  for (std::size_t i = 0; i < name.size(); ++i)
    if ((line[i] | 0x20) != name[i]) return {};
  line.remove_prefix(name.size() + 1);
  const auto first = line.find_first_not_of(" \t"), last = line.find_last_not_of(" \t\r\n");
  return first == std::string_view::npos ? std::string() : std::string(line.substr(first, last - first + 1));
}

// "bytes 100-199/1234": the first and the whole.
void read_content_range(std::string_view text, Request& request) {
  const auto number = [&](std::size_t from, std::uint64_t& value) {
    return from < text.size() &&
           std::from_chars(text.data() + from, text.data() + text.size(), value).ec == std::errc{};
  };
  std::uint64_t first = 0, whole = 0;
  const auto slash = text.find('/');
  if (text.starts_with("bytes ") && slash != std::string_view::npos && number(slash + 1, whole)) request.size = whole;
  request.is_part = number(6, first) && first == request.offset;
}

std::size_t take_header(char* bytes, std::size_t, std::size_t count, void* to) {
  auto& request = *static_cast<Request*>(to);
  const std::string_view line(bytes, count);
  if (line.starts_with("HTTP/")) {  // of another answer, after a redirection
    request.is_part = false;
    request.size.reset();
    request.etag.clear();
  }
  if (const auto value = header_value(line, "content-range"); !value.empty()) read_content_range(value, request);
  if (const auto value = header_value(line, "etag"); !value.empty()) request.etag = value;
  if (const auto value = header_value(line, "location"); !value.empty()) request.location = value;
  return count;
}

// Takes what belongs to the range, and ends an answer that is none.
std::size_t take_body(char* bytes, std::size_t, std::size_t count, void* to) {
  auto& request = *static_cast<Request*>(to);
  if (!request.is_part) return count > 0 ? CURL_WRITEFUNC_ERROR : 0;
  if (count > request.into.size() - request.received) return CURL_WRITEFUNC_ERROR;
  std::memcpy(request.into.data() + request.received, bytes, count);
  request.received += count;
  return count;
}

class HttpFile final : public RemoteBytes {
 public:
  // Null where the server has no such file, and `if_missing` allows it.
  static std::shared_ptr<const HttpFile> open(const std::string& url, const Store& options, IfMissing if_missing) {
    const std::shared_ptr<HttpFile> file(new HttpFile(url, options));
    std::byte first{};
    Request request{0, std::span(&first, 1)};
    file->fetch(request, url, if_missing);
    if (says_missing(request.status, if_missing)) return nullptr;
    file->size_ = request.size.value_or(0);
    file->etag_ = request.etag;
    return file;
  }

  std::uint64_t size() const override { return size_; }

  void read(std::uint64_t offset, std::span<std::byte> into, std::string_view where) const override {
    if (!into.empty()) read_range(offset, into, where);
  }

 private:
  HttpFile(std::string url, Store options) : url_(std::move(url)), options_(std::move(options)) {}

  void read_range(std::uint64_t offset, std::span<std::byte> into, std::string_view where) const {
    Request request{offset, into};
    fetch(request, std::string(where));
    if (request.size != size_ || request.etag != etag_)
      throw Error(ErrorKind::data, where, "the file at " + url_ + " changed while it was read",
                  "start again, once nobody writes it");
  }

  // Until all is there. What was received stays, and only the rest is asked for again.
  void fetch(Request& whole, const std::string& where, IfMissing if_missing = IfMissing::fail) const {
    double pause = kFirstPause;
    for (std::int64_t failed = 0;;) {
      Request request{whole.offset + whole.received, whole.into.subspan(whole.received)};
      const bool may_pass = perform(request);
      whole.received += request.received;
      whole.size = request.size ? request.size : whole.size;
      if (!request.etag.empty()) whole.etag = request.etag;
      whole.status = request.status;
      if (request.why.empty() || says_missing(request.status, if_missing)) return;
      if (request.received > 0) {
        failed = 0;
        pause = kFirstPause;
      }
      if (!may_pass || failed == options_.retries)
        throw Error(ErrorKind::data, where,
                    (where == url_ ? "" : "of " + url_ + ": ") + request.why +
                        (may_pass && failed > 0 ? ", tried " + std::to_string(failed + 1) + " times" : ""),
                    may_pass ? "is the store at work? data.store_timeout_s and data.store_retries say how long it is "
                               "waited for"
                             : "check the address, and who may read it");
      ++failed;
      std::this_thread::sleep_for(
          std::chrono::duration<double>(std::max(pause, std::min(request.asked_pause, kLongestAsked))));
      pause = std::min(2 * pause, kLongestPause);
    }
  }

  // Fills in `request.why`; returns whether another try may fare better.
  bool perform(Request& request) const {
    CURL* curl = connection().fresh();
    char words[CURL_ERROR_SIZE] = "";
    const auto range = std::to_string(request.offset) + "-" + std::to_string(request.offset + request.into.size() - 1);
    const auto ms = static_cast<long>(options_.timeout_s * 1000);
    curl_easy_setopt(curl, CURLOPT_URL, url_.c_str());
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
    // Not with a signature: its headers, a session's token among them, would go to another server.
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, options_.region.empty() ? 1L : 0L);
    curl_easy_setopt(curl, CURLOPT_MAXREDIRS, 5L);
    curl_easy_setopt(curl, CURLOPT_RANGE, range.c_str());
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, ms);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, std::max(1L, ms / 1000));
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, words);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "ditto");
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, take_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, &request);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &request);
    const auto signing = sign(curl);
    const auto code = curl_easy_perform(curl);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &request.status);
    curl_off_t asked = 0;
    curl_easy_getinfo(curl, CURLINFO_RETRY_AFTER, &asked);
    request.asked_pause = static_cast<double>(asked);
    if (request.received == request.into.size()) return true;
    const auto status = "the server answers " + std::to_string(request.status);
    if (request.status >= 400) {
      request.why = status;
      return request.status >= 500 || request.status == 408 || request.status == 429;
    }
    if (request.status >= 300 && request.status < 400) {
      request.why = status + ", a redirection to " + ditto::shown(request.location) +
                    (options_.region.empty() ? "" : ", which signed requests (data.store_region) do not follow");
      return false;
    }
    if (request.status == 200 || (request.status == 206 && !request.is_part)) {
      request.why = status + " where a range of the file was asked for: it serves no ranges";
      return false;
    }
    if (code == CURLE_OK)
      request.why = request.status == 206 ? "the answer ends after " + std::to_string(request.received) + " of " +
                                                std::to_string(request.into.size()) + " bytes"
                                          : status;
    else
      request.why = words[0] != '\0' ? ditto::shown(words) : std::string(curl_easy_strerror(code));
    return code != CURLE_UNSUPPORTED_PROTOCOL && code != CURLE_URL_MALFORMAT && code != CURLE_TOO_MANY_REDIRECTS &&
           code != CURLE_PEER_FAILED_VERIFICATION;
  }

  // For S3, by libcurl. The list must live as long as the request.
  std::unique_ptr<curl_slist, FreeList> sign(CURL* curl) const {
    if (options_.region.empty()) return nullptr;
    const auto from = [](const char* name) {
      const char* value = std::getenv(name);
      return std::string(value == nullptr ? "" : value);
    };
    const auto key = from("AWS_ACCESS_KEY_ID"), secret = from("AWS_SECRET_ACCESS_KEY"),
               token = from("AWS_SESSION_TOKEN");
    if (key.empty() || secret.empty())
      throw Error(ErrorKind::config, "data.store_region",
                  "asks for signed requests, and AWS_ACCESS_KEY_ID or AWS_SECRET_ACCESS_KEY is not set",
                  "set both in the environment, or leave data.store_region out");
    curl_easy_setopt(curl, CURLOPT_AWS_SIGV4, ("aws:amz:" + options_.region + ":s3").c_str());
    curl_easy_setopt(curl, CURLOPT_USERNAME, key.c_str());
    curl_easy_setopt(curl, CURLOPT_PASSWORD, secret.c_str());
    std::unique_ptr<curl_slist, FreeList> headers;
    const auto add = [&](const std::string& line) {
      headers.reset(curl_slist_append(headers.release(), line.c_str()));
    };
    add(kEmptyBody);
    if (!token.empty()) add("x-amz-security-token: " + token);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
    return headers;
  }

  std::string url_;
  Store options_;
  std::uint64_t size_ = 0;
  std::string etag_;
};

// For who reads a file from its begin to its end in small parts.
class ReadAhead final : public RemoteBytes {
 public:
  explicit ReadAhead(std::shared_ptr<const RemoteBytes> file) : file_(std::move(file)) {}
  std::uint64_t size() const override { return file_->size(); }
  void read(std::uint64_t offset, std::span<std::byte> into, std::string_view where) const override {
    if (into.size() >= kBlock) return file_->read(offset, into, where);
    const std::lock_guard lock(mutex_);
    if (offset < begin_ || offset + into.size() > begin_ + block_.size()) {
      std::vector<std::byte> block(std::min(kBlock, size() - offset));
      file_->read(offset, block, where);
      begin_ = offset;
      block_ = std::move(block);
    }
    std::copy_n(block_.begin() + static_cast<std::ptrdiff_t>(offset - begin_), into.size(), into.begin());
  }

 private:
  std::shared_ptr<const RemoteBytes> file_;
  mutable std::mutex mutex_;
  mutable std::uint64_t begin_ = 0;
  mutable std::vector<std::byte> block_;
};

}  // namespace

bool is_url(std::string_view path) { return path.starts_with("http://") || path.starts_with("https://"); }

std::string joined(const std::string& folder, const std::string& path) {
  if (is_url(path)) return path;
  const auto whole = std::filesystem::path(folder) / path;
  return is_url(folder) ? whole.string() : whole.lexically_normal().string();
}

std::shared_ptr<const RandomFile> Store::open(const std::string& path) const {
  return is_url(path) ? RandomFile::over(HttpFile::open(path, *this, IfMissing::fail), path) : RandomFile::open(path);
}

std::shared_ptr<const RandomFile> Store::open_to_scan(const std::string& path) const {
  if (!is_url(path)) return RandomFile::open(path);
  return RandomFile::over(std::make_shared<ReadAhead>(HttpFile::open(path, *this, IfMissing::fail)), path);
}

bool Store::has(const std::string& path) const {
  return is_url(path) ? HttpFile::open(path, *this, IfMissing::allow) != nullptr
                      : std::filesystem::is_regular_file(path);
}

bool Store::shows(const std::string& path) const {
  return is_url(path) ? HttpFile::open(path, *this, IfMissing::allow_hidden) != nullptr : has(path);
}

std::string Store::read(const std::string& path, std::uint64_t most) const {
  if (!is_url(path)) return ditto::formats::read_file(path, ErrorKind::data, most);
  const auto file = open(path);
  if (file->size() > most)
    throw Error(ErrorKind::data, path,
                "has " + std::to_string(file->size()) + " bytes; at most " + std::to_string(most) + " are expected");
  std::string text(file->size(), '\0');
  file->read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace webdataset
