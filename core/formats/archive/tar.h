// Tar archives as data shards: an index of the members' places, and a writer whose bytes depend on nothing but the
// members (no times, no owners).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ditto/formats/file.h>

namespace ditto::formats {

struct TarMember {
  std::string name;      // as stored, UTF-8 where the archive says so; never to be used as a path on disk
  std::uint64_t offset;  // of its first byte of data in the file
  std::uint64_t size;    // bytes
  std::uint64_t header;  // where its first header begins: what else says of it (a long name) included
};

// A member that has no bytes of its own to be read, and costs none of its neighbours.
struct TarLeftOut {
  std::string name;
  std::string why;  // "is a symbolic link, which is not followed"
};

struct TarIndex {
  // Regular files, in the archive's order, and hard links to those before them, whose bytes are their target's.
  std::vector<TarMember> members;
  std::vector<TarLeftOut> left_out;  // neither these nor folders: symbolic links, sparse files, devices, …
  std::string damage;     // empty: the archive is whole. Otherwise what and at which byte; members lie before it
  std::uint64_t end = 0;  // where the data of all that was read ends, padding included: the end mark's place
};

enum class OnDamage { refuse, report };

// Reads ustar, v7, pax and GNU archives (long names, sizes over 8 GiB), uncompressed, and several that `cat` put
// together, as `tar --ignore-zeros` does. Damage: a header whose checksum is wrong, a member that is cut off, no end
// mark (an archive cut off between two members), bytes behind the end mark that are no archive.
// OnDamage::refuse throws Error(data) "FILE: … at byte N"; report returns the whole members before it. A file that is
// no tar at all, or cannot be read, is an Error(data) in both.
TarIndex index_tar(const std::string& path, OnDamage on_damage = OnDamage::refuse);
TarIndex index_tar(const RandomFile& file, OnDamage on_damage = OnDamage::refuse);
TarIndex index_tar(std::span<const std::byte> file, std::string_view where, OnDamage on_damage = OnDamage::refuse);

// Writes the GNU form: names as their bytes, long ones in a header of their own. Mode 0644, owner 0, time 0.
class TarWriter {
 public:
  explicit TarWriter(const std::string& path);  // Error(data)
  ~TarWriter();                                 // closes; without finish() the file is incomplete
  TarWriter(const TarWriter&) = delete;
  TarWriter& operator=(const TarWriter&) = delete;

  void add(const std::string& name, std::span<const std::byte> bytes);
  void add(const std::string& name, std::string_view text);
  void finish(Sync sync = Sync::none);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ditto::formats
