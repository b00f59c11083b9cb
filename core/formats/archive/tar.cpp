// Tar by libarchive, which is given the headers of a file and skips the rest: after a member's headers it stands where
// the member's data begins. It is told to read on behind end marks, so that every byte of a file is accounted for.
#include "core/formats/archive/tar.h"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <unordered_map>

#include <ditto/text.h>

namespace ditto::formats {

namespace {

constexpr std::uint64_t kBlock = 512, kScan = 64 << 10;

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
std::string either(const char* utf8, const char* bytes) {
  return utf8 != nullptr ? utf8 : bytes != nullptr ? bytes : "";
}
std::string name_of(archive_entry* entry) {
  return either(archive_entry_pathname_utf8(entry), archive_entry_pathname(entry));
}

// Two names of one member, as `tar -x` writes it.
std::string plain(std::string name) {
  while (name.starts_with("./")) name.erase(0, 2);
  return name;
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
    if (!archive_ || archive_read_support_format_tar(archive_.get()) < ARCHIVE_WARN ||
        archive_read_set_format_option(archive_.get(), "tar", "read_concatenated_archives", "1") < ARCHIVE_WARN)
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
    if (starts(std::string_view("\0\5\x16\7", 4)))
      throw Error(ErrorKind::data, file_.path(),
                  "this is not a tar archive: macOS keeps notes (AppleDouble) in such a file beside the real one",
                  "leave it out");
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

  // The first block from `at` on that is not all zeros; the file's end: there is none.
  std::uint64_t behind_zeros(std::uint64_t at) const {
    if (!zero_block(at)) return at;
    const auto is_zero = [](std::byte byte) { return byte == std::byte{}; };
    std::vector<std::byte> bytes;
    for (std::uint64_t from = at; from < file_.size(); from += bytes.size()) {
      bytes.resize(std::min(kScan, file_.size() - from));
      file_.read(from, bytes);
      const auto first = std::find_if_not(bytes.begin(), bytes.end(), is_zero);
      if (first != bytes.end())
        return at + (from - at + static_cast<std::uint64_t>(first - bytes.begin())) / kBlock * kBlock;
    }
    return file_.size();
  }

  bool next() {
    archive_entry* entry = nullptr;
    const int result = archive_read_next_header(archive_.get(), &entry);
    feed_.rethrow();
    const auto here = archive_read_header_position(archive_.get());  // below 0: libarchive has given up
    // How much of the file a member takes that is none of `members` libarchive alone knows.
    if (!end_is_known_ && here > 0) index_.end = end_ = static_cast<std::uint64_t>(here);
    if (result == ARCHIVE_EOF) {
      if (!zero_block(end_))
        damaged("the archive has no end mark: it was cut off", std::min<std::uint64_t>(end_, file_.size()));
      return false;
    }
    if (result == ARCHIVE_RETRY || result < ARCHIVE_WARN) return no_header();  // retry would skip the damaged header
    if (static_cast<std::uint64_t>(here) != end_) {
      damaged("a header is missing", end_);
      return false;
    }
    place(entry);
    return true;
  }

  bool no_header() {
    const auto at = std::min(behind_zeros(std::min(end_, file_.size())), file_.size());
    if (at == end_ || end_ >= file_.size())
      damaged(at >= file_.size() ? "a header is cut off" : "a header is damaged (" + reason(archive_.get()) + ")", at);
    else if (at < file_.size())  // else nothing but zeros, though no whole block of them
      damaged("behind the end mark follow " + std::to_string(file_.size() - at) + " bytes that are no archive,", at);
    return false;
  }

  void place(archive_entry* entry) {
    const auto offset = static_cast<std::uint64_t>(archive_filter_bytes(archive_.get(), 0));
    const auto header = offset - end_ > kBlock ? behind_zeros(end_) : end_;
    const std::string name = name_of(entry);
    const bool is_link = archive_entry_hardlink(entry) != nullptr;
    const auto type = archive_entry_filetype(entry);
    end_is_known_ = !is_link && type == AE_IFREG && archive_entry_sparse_count(entry) == 0;
    const auto size =
        end_is_known_ ? static_cast<std::uint64_t>(std::max<la_int64_t>(archive_entry_size(entry), 0)) : 0;
    if (offset > file_.size() || size > file_.size() - offset)
      return damaged("member '" + shown(name) + "' of " + std::to_string(size) + " bytes is cut off", header);
    if (is_link)
      link(name, either(archive_entry_hardlink_utf8(entry), archive_entry_hardlink(entry)), header);
    else if (end_is_known_)
      index_.members.push_back({name, offset, size, header});
    else if (type == AE_IFREG)
      index_.left_out.push_back({name, "is a sparse file, which is not read"});
    else if (type != AE_IFDIR)
      index_.left_out.push_back({name, type == AE_IFLNK ? "is a symbolic link, which is not followed"
                                                        : "is a device or pipe, which is not read"});
    index_.end = end_ = offset + padded(size);
  }

  // `tar -x` gives a hard link what its target holds by then: the last member of that name before it.
  void link(const std::string& name, const std::string& target, std::uint64_t header) {
    for (; named_ < index_.members.size(); ++named_) by_name_[plain(index_.members[named_].name)] = named_;
    const auto found = by_name_.find(plain(target));
    if (found == by_name_.end())
      index_.left_out.push_back({name, "is a hard link to '" + shown(target) + "', which is not before it"});
    else
      index_.members.push_back(
          {name, index_.members[found->second].offset, index_.members[found->second].size, header});
  }

  const RandomFile& file_;
  Feed feed_;
  std::unique_ptr<archive, FreeRead> archive_;
  TarIndex index_;
  std::uint64_t end_ = 0;  // where the next header should lie
  bool end_is_known_ = true;
  std::unordered_map<std::string, std::size_t> by_name_;  // the first `named_` members, once there is a link
  std::size_t named_ = 0;
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
