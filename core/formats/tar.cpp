// Tar by libarchive, which is given the headers of a file and skips the rest: after a member's headers it stands where
// the member's data begins.
#include "core/formats/tar.h"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>

#include <ditto/text.h>

namespace ditto::formats {

namespace {

constexpr std::uint64_t kBlock = 512;

struct FreeRead {
  void operator()(archive* a) const { archive_read_free(a); }
};
struct FreeWrite {
  void operator()(archive* a) const { archive_write_free(a); }
};
struct FreeEntry {
  void operator()(archive_entry* e) const { archive_entry_free(e); }
};

std::uint64_t padded(std::uint64_t bytes) { return (bytes + kBlock - 1) / kBlock * kBlock; }

std::string reason(archive* a) {
  const char* text = archive_error_string(a);
  return text == nullptr ? "unknown error" : text;
}

// Names that are not UTF-8 (old archives) come as their bytes.
std::string name_of(archive_entry* entry) {
  const char* name = archive_entry_pathname_utf8(entry);
  if (name == nullptr) name = archive_entry_pathname(entry);
  return name == nullptr ? std::string() : name;
}

// A file as libarchive reads it: in small parts, since most of a shard is skipped.
class Feed {
 public:
  explicit Feed(const RandomFile& file) : file_(file) {}

  void open(archive* a) {
    archive_read_set_callback_data(a, this);
    archive_read_set_read_callback(
        a, [](archive* in, void* self, const void** buffer) { return static_cast<Feed*>(self)->read(in, buffer); });
    archive_read_set_skip_callback(
        a, [](archive*, void* self, la_int64_t bytes) { return static_cast<Feed*>(self)->skip(bytes); });
    const int opened = archive_read_open1(a);
    rethrow();
    if (opened < ARCHIVE_WARN) throw Error(ErrorKind::data, file_.path(), "libarchive cannot read it: " + reason(a));
  }

  // What libarchive tells as damage may have been a disk that did not answer.
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  la_ssize_t read(archive* a, const void** buffer) {
    const auto bytes = std::min<std::uint64_t>(buffer_.size(), file_.size() - at_);
    *buffer = buffer_.data();
    try {
      file_.read(at_, std::span(buffer_).first(bytes));
    } catch (const Error& error) {
      failure_ = std::current_exception();
      archive_set_error(a, EIO, "%s", error.what());
      return -1;
    }
    at_ += bytes;
    return static_cast<la_ssize_t>(bytes);
  }

  la_int64_t skip(la_int64_t bytes) {
    const auto taken = std::min<std::uint64_t>(static_cast<std::uint64_t>(bytes), file_.size() - at_);
    at_ += taken;
    return static_cast<la_int64_t>(taken);
  }

  const RandomFile& file_;
  std::uint64_t at_ = 0;
  std::array<std::byte, 16 * kBlock> buffer_;
  std::exception_ptr failure_;
};

class Walk {
 public:
  explicit Walk(const RandomFile& file) : file_(file), feed_(file) {}

  TarIndex run() {
    check_start();
    archive_.reset(archive_read_new());
    if (!archive_ || archive_read_support_format_tar(archive_.get()) < ARCHIVE_WARN)
      throw Error(ErrorKind::data, file_.path(), "libarchive cannot read it");
    feed_.open(archive_.get());
    while (index_.damage.empty() && next()) {
    }
    return std::move(index_);
  }

 private:
  using Block = std::array<std::byte, kBlock>;

  Block block(std::uint64_t at) const {
    Block bytes;
    file_.read(at, bytes);
    return bytes;
  }

  // What is no tar at all is told apart from a tar that is damaged later.
  void check_start() const {
    if (file_.size() == 0) throw Error(ErrorKind::data, file_.path(), "the file is empty; a tar archive is expected");
    const auto first = file_.read(0, std::min<std::uint64_t>(file_.size(), 8));
    const auto starts = [&](std::string_view magic) {
      return first.size() >= magic.size() && std::memcmp(first.data(), magic.data(), magic.size()) == 0;
    };
    if (starts("\x1f\x8b") || starts("\x28\xb5\x2f\xfd") || starts("BZh") ||
        starts("\xfd"
               "7zXZ"))
      throw Error(ErrorKind::data, file_.path(),
                  "the archive is compressed; members are read from their places in the file",
                  "unpack it to a plain .tar");
    if (file_.size() < kBlock || !(zero_block(0) || good_checksum(block(0))))
      throw Error(ErrorKind::data, file_.path(), "this is not a tar archive: its first 512 bytes are no tar header");
  }

  bool zero_block(std::uint64_t at) const {
    if (at > file_.size() || file_.size() - at < kBlock) return false;
    return block(at) == Block{};
  }

  // A header's checksum is the sum of its bytes with the checksum's own field as spaces; some old programs summed
  // signed bytes.
  static bool good_checksum(const Block& header) {
    std::int64_t sum = 0, signed_sum = 0, told = 0;
    for (std::uint64_t i = 0; i < kBlock; ++i) {
      const std::byte byte = i >= 148 && i < 156 ? std::byte{' '} : header[i];
      sum += std::to_integer<std::uint8_t>(byte);
      signed_sum += std::to_integer<std::int8_t>(byte);
    }
    for (std::uint64_t i = 148; i < 156; ++i) {
      const auto c = std::to_integer<char>(header[i]);
      if (c >= '0' && c <= '7') told = told * 8 + (c - '0');
    }
    return told == sum || told == signed_sum;
  }

  void damaged(const std::string& what, std::uint64_t at) { index_.damage = what + " at byte " + std::to_string(at); }

  bool next() {
    archive_entry* entry = nullptr;
    const int result = archive_read_next_header(archive_.get(), &entry);
    feed_.rethrow();
    if (result == ARCHIVE_EOF) {
      if (!zero_block(end_))
        damaged("the archive has no end mark: it was cut off", std::min<std::uint64_t>(end_, file_.size()));
      return false;
    }
    if (result == ARCHIVE_RETRY || result < ARCHIVE_WARN) {  // retry would skip the damaged header
      damaged(end_ >= file_.size() ? "a header is cut off" : "a header is damaged (" + reason(archive_.get()) + ")",
              std::min<std::uint64_t>(end_, file_.size()));
      return false;
    }
    if (static_cast<std::uint64_t>(archive_read_header_position(archive_.get())) != end_) {
      damaged("a header is missing", end_);
      return false;
    }
    place(entry);
    return true;
  }

  void place(archive_entry* entry) {
    const auto header = static_cast<std::uint64_t>(archive_read_header_position(archive_.get()));
    const std::string name = name_of(entry);
    if (archive_entry_sparse_count(entry) > 0)
      return damaged("member '" + shown(name) + "' is sparse, which is not read", header);
    const bool plain = archive_entry_filetype(entry) == AE_IFREG && archive_entry_hardlink(entry) == nullptr;
    const auto size = plain ? static_cast<std::uint64_t>(std::max<la_int64_t>(archive_entry_size(entry), 0)) : 0;
    const auto offset = static_cast<std::uint64_t>(archive_filter_bytes(archive_.get(), 0));
    if (offset > file_.size() || size > file_.size() - offset)
      return damaged("member '" + shown(name) + "' of " + std::to_string(size) + " bytes is cut off", header);
    if (plain) index_.members.push_back({name, offset, size, header});
    index_.end = end_ = offset + padded(size);
  }

  const RandomFile& file_;
  Feed feed_;
  std::unique_ptr<archive, FreeRead> archive_;
  TarIndex index_;
  std::uint64_t end_ = 0;  // where the next header should lie
};

}  // namespace

TarIndex index_tar(const RandomFile& file, OnDamage on_damage) {
  TarIndex index = Walk(file).run();
  if (on_damage == OnDamage::refuse && !index.damage.empty())
    throw Error(ErrorKind::data, file.path(), index.damage, "make the archive again, or allow damaged shards");
  return index;
}

TarIndex index_tar(std::span<const std::byte> file, std::string_view where, OnDamage on_damage) {
  return index_tar(*RandomFile::over(file, where), on_damage);
}

TarIndex index_tar(const std::string& path, OnDamage on_damage) {
  return index_tar(*RandomFile::open(path), on_damage);
}

struct TarWriter::State {
  std::string path;
  std::unique_ptr<archive, FreeWrite> out;

  void check(long long result) const {
    if (result < ARCHIVE_OK)
      throw Error(ErrorKind::data, path, std::string("cannot be written: ") + std::strerror(archive_errno(out.get())));
  }
};

TarWriter::TarWriter(const std::string& path) : state_(std::make_unique<State>()) {
  state_->path = path;
  state_->out.reset(archive_write_new());
  if (!state_->out) throw Error(ErrorKind::data, path, "libarchive could not start");
  archive* out = state_->out.get();
  state_->check(archive_write_set_format_gnutar(out));
  state_->check(archive_write_open_filename(out, path.c_str()));
}

TarWriter::~TarWriter() = default;

void TarWriter::add(const std::string& name, std::span<const std::byte> bytes) {
  const std::unique_ptr<archive_entry, FreeEntry> entry(archive_entry_new());
  if (name.empty() || name.find('\0') != std::string::npos)
    throw Error(ErrorKind::data, state_->path, "a member's name is empty or has a NUL byte");
  archive_entry_set_pathname(entry.get(), name.c_str());
  archive_entry_set_filetype(entry.get(), AE_IFREG);
  archive_entry_set_perm(entry.get(), 0644);
  archive_entry_set_size(entry.get(), static_cast<la_int64_t>(bytes.size()));
  archive_entry_set_mtime(entry.get(), 0, 0);
  archive* out = state_->out.get();
  state_->check(archive_write_header(out, entry.get()));
  if (!bytes.empty()) state_->check(archive_write_data(out, bytes.data(), bytes.size()));
  state_->check(archive_write_finish_entry(out));
}

void TarWriter::add(const std::string& name, std::string_view text) { add(name, std::as_bytes(std::span(text))); }

void TarWriter::finish(Sync sync) {
  state_->check(archive_write_close(state_->out.get()));
  if (sync == Sync::fsync) sync_file(state_->path, ErrorKind::data);
}

}  // namespace ditto::formats
