// Tar by libarchive, over a memory map: the address at which libarchive hands out a member's first bytes gives its
// place in the file.
#include "core/formats/tar.h"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

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

class Walk {
 public:
  Walk(std::span<const std::byte> file, std::string_view where) : file_(file), where_(where) {}

  TarIndex run() {
    check_start();
    archive_.reset(archive_read_new());
    if (!archive_ || archive_read_support_format_tar(archive_.get()) < ARCHIVE_WARN ||
        archive_read_open_memory(archive_.get(), file_.data(), file_.size()) < ARCHIVE_WARN)
      throw Error(ErrorKind::data, where_, "libarchive cannot read it: " + (archive_ ? reason(archive_.get()) : ""));
    while (index_.damage.empty() && next()) {
    }
    return std::move(index_);
  }

 private:
  // What is no tar at all is told apart from a tar that is damaged later.
  void check_start() const {
    if (file_.empty()) throw Error(ErrorKind::data, where_, "the file is empty; a tar archive is expected");
    const auto starts = [&](std::string_view magic) {
      return file_.size() >= magic.size() && std::memcmp(file_.data(), magic.data(), magic.size()) == 0;
    };
    if (starts("\x1f\x8b") || starts("\x28\xb5\x2f\xfd") || starts("BZh") ||
        starts("\xfd"
               "7zXZ"))
      throw Error(ErrorKind::data, where_, "the archive is compressed; members are read from their places in the file",
                  "unpack it to a plain .tar");
    if (file_.size() < kBlock || !(zero_block(0) || good_checksum(0)))
      throw Error(ErrorKind::data, where_, "this is not a tar archive: its first 512 bytes are no tar header");
  }

  bool zero_block(std::uint64_t at) const {
    if (at > file_.size() || file_.size() - at < kBlock) return false;
    const auto block = file_.subspan(at, kBlock);
    return std::all_of(block.begin(), block.end(), [](std::byte b) { return b == std::byte{0}; });
  }

  // A header's checksum is the sum of its bytes with the checksum's own field as spaces; some old programs summed
  // signed bytes.
  bool good_checksum(std::uint64_t at) const {
    std::int64_t sum = 0, signed_sum = 0, told = 0;
    for (std::uint64_t i = 0; i < kBlock; ++i) {
      const std::byte byte = i >= 148 && i < 156 ? std::byte{' '} : file_[at + i];
      sum += std::to_integer<std::uint8_t>(byte);
      signed_sum += std::to_integer<std::int8_t>(byte);
    }
    for (std::uint64_t i = 148; i < 156; ++i) {
      const auto c = std::to_integer<char>(file_[at + i]);
      if (c >= '0' && c <= '7') told = told * 8 + (c - '0');
    }
    return told == sum || told == signed_sum;
  }

  void damaged(const std::string& what, std::uint64_t at) { index_.damage = what + " at byte " + std::to_string(at); }

  bool next() {
    archive_entry* entry = nullptr;
    const int result = archive_read_next_header(archive_.get(), &entry);
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
    if (size == 0) {
      // Nothing is handed out for an empty member; libarchive has read exactly its headers.
      end_ = static_cast<std::uint64_t>(archive_filter_bytes(archive_.get(), 0));
      if (plain) index_.members.push_back({name, end_, 0});
      return;
    }
    const void* data = nullptr;
    std::size_t bytes = 0;
    la_int64_t within = 0;
    const int result = archive_read_data_block(archive_.get(), &data, &bytes, &within);
    const auto* first = static_cast<const std::byte*>(data);
    if (result < ARCHIVE_WARN || within != 0 || first < file_.data() || first >= file_.data() + file_.size())
      return damaged("member '" + shown(name) + "' is cut off", header);
    const auto offset = static_cast<std::uint64_t>(first - file_.data());
    if (size > file_.size() - offset)
      return damaged("member '" + shown(name) + "' of " + std::to_string(size) + " bytes is cut off", header);
    index_.members.push_back({name, offset, size});
    end_ = offset + padded(size);
  }

  std::span<const std::byte> file_;
  std::string_view where_;
  std::unique_ptr<archive, FreeRead> archive_;
  TarIndex index_;
  std::uint64_t end_ = 0;  // where the next header should lie
};

}  // namespace

TarIndex index_tar(std::span<const std::byte> file, std::string_view where, OnDamage on_damage) {
  TarIndex index = Walk(file, where).run();
  if (on_damage == OnDamage::refuse && !index.damage.empty())
    throw Error(ErrorKind::data, where, index.damage, "make the archive again, or allow damaged shards");
  return index;
}

TarIndex index_tar(const std::string& path, OnDamage on_damage) {
  return index_tar(MappedFile::open(path, ErrorKind::data)->bytes(), path, on_damage);
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
