#include "core/formats/picture/tiff_directory.h"

#include <algorithm>
#include <array>

namespace ditto::formats {

namespace {

enum Tag : unsigned {
  kNewSubfileType = 254,
  kSubfileType = 255,
  kPhotometric = 262,
  kSubDirectories = 330,
  kDngVersion = 50706,
};
constexpr std::uint64_t kColourFilter = 32803, kLinearRaw = 34892;
constexpr std::uint64_t kMostEntries = 0xFFFF, kMostNumbers = 64, kMostBytes = 16u << 20;

std::size_t bytes_of_type(unsigned type) {
  constexpr std::array<std::size_t, 19> kBytes{0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8, 8, 8};
  return type < kBytes.size() ? kBytes[type] : 0;
}

bool is_whole_number(unsigned type) {  // SHORT, LONG, SSHORT, SLONG, IFD, LONG8, SLONG8, IFD8
  return type == 3 || type == 4 || type == 8 || type == 9 || type == 13 || (type >= 16 && type <= 18);
}

bool is_raw(const TiffDirectory& directory) {
  const auto photometric = directory.number(kPhotometric);
  return directory.has(kDngVersion) || photometric == kColourFilter || photometric == kLinearRaw;
}

}  // namespace

std::optional<TiffDirectory> TiffDirectory::first(const RandomFile& file) {
  if (file.size() < 8) return std::nullopt;
  const auto head = file.read(0, std::min<std::uint64_t>(file.size(), 16));
  const auto starts = [&](std::array<int, 4> with) {
    return std::equal(with.begin(), with.end(), head.begin(),
                      [](int a, std::byte b) { return static_cast<std::byte>(a) == b; });
  };
  const bool little = starts({'I', 'I', 42, 0}) || starts({'I', 'I', 43, 0});
  const bool big_file = starts({'I', 'I', 43, 0}) || starts({'M', 'M', 0, 43});
  if ((!little && !starts({'M', 'M', 0, 42}) && !starts({'M', 'M', 0, 43})) || (big_file && head.size() < 16))
    return std::nullopt;
  TiffDirectory directory(file, little ? Order::little : Order::big, big_file ? 8 : 4);
  directory.read(directory.number_in(head, big_file ? 8 : 4, directory.place_bytes_));
  return directory;
}

void TiffDirectory::read(std::uint64_t at) {
  const std::size_t count_bytes = place_bytes_ == 8 ? 8 : 2, entry_bytes = 4 + 2 * place_bytes_;
  const auto count = part(at, count_bytes);
  if (count.empty()) return;
  const auto entries =
      std::min({number_in(count, 0, count_bytes), kMostEntries, (file_->size() - at - count_bytes) / entry_bytes});
  const auto table = part(at + count_bytes, entries * entry_bytes);
  for (std::size_t i = 0; i + entry_bytes <= table.size(); i += entry_bytes) {
    Entry entry{static_cast<unsigned>(number_in(table, i + 2, 2)), number_in(table, i + 4, place_bytes_),
                at + count_bytes + i + 4 + place_bytes_};
    const auto size = bytes_of_type(entry.type);
    if (size == 0 || entry.count > kMostBytes) continue;
    if (entry.count * size > place_bytes_) entry.value_at = number_in(table, i + 4 + place_bytes_, place_bytes_);
    entries_[static_cast<unsigned>(number_in(table, i, 2))] = entry;
  }
}

std::uint64_t TiffDirectory::number_in(const std::vector<std::byte>& bytes, std::size_t at, std::size_t size) const {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < size; ++i)
    value = value << 8 | std::to_integer<std::uint64_t>(bytes[at + (order_ == Order::big ? i : size - 1 - i)]);
  return value;
}

std::vector<std::byte> TiffDirectory::part(std::uint64_t at, std::uint64_t size) const {
  if (at > file_->size() || size > file_->size() - at) return {};
  return file_->read(at, size);
}

std::vector<std::byte> TiffDirectory::value(unsigned tag, std::uint64_t most) const {
  const auto& entry = entries_.at(tag);
  return part(entry.value_at, std::min(entry.count, most) * bytes_of_type(entry.type));
}

std::vector<std::uint64_t> TiffDirectory::numbers(unsigned tag) const {
  std::vector<std::uint64_t> out;
  const auto it = entries_.find(tag);
  if (it == entries_.end() || !is_whole_number(it->second.type)) return out;
  const auto found = value(tag, kMostNumbers);
  const auto size = bytes_of_type(it->second.type);
  for (std::size_t at = 0; at + size <= found.size(); at += size) out.push_back(number_in(found, at, size));
  return out;
}

std::optional<std::uint64_t> TiffDirectory::number(unsigned tag) const {
  const auto all = numbers(tag);
  return all.empty() ? std::nullopt : std::optional(all.front());
}

std::vector<std::byte> TiffDirectory::bytes(unsigned tag) const {
  const auto it = entries_.find(tag);
  return it == entries_.end() || bytes_of_type(it->second.type) != 1 ? std::vector<std::byte>{}
                                                                     : value(tag, kMostBytes);
}

std::vector<TiffDirectory> TiffDirectory::inner() const {
  std::vector<TiffDirectory> out;
  for (const auto at : numbers(kSubDirectories)) {
    out.push_back(TiffDirectory(*file_, order_, place_bytes_));
    out.back().read(at);
  }
  return out;
}

TiffKind tiff_kind(const RandomFile& file) {
  const auto first = TiffDirectory::first(file);
  if (!first) return TiffKind::picture;
  const auto inner = first->inner();
  const bool is_canons = file.size() >= 10 && file.read(8, 2) == std::vector{std::byte{'C'}, std::byte{'R'}};
  if (is_canons || is_raw(*first) || std::any_of(inner.begin(), inner.end(), is_raw)) return TiffKind::raw;
  constexpr std::uint64_t kReducedBit = 1, kReducedOnce = 2;  // of SubfileType, as TIFF 5 had it
  const bool is_reduced =
      (first->number(kNewSubfileType).value_or(0) & kReducedBit) != 0 || first->number(kSubfileType) == kReducedOnce;
  return is_reduced ? TiffKind::reduced : TiffKind::picture;
}

const char* why_no_picture(TiffKind kind) {
  switch (kind) {
    case TiffKind::raw: return "raw camera files: what a sensor saw, beside thumbnails, and no picture yet";
    case TiffKind::reduced: return "reduced copies: what the file shows calls itself a thumbnail (NewSubfileType 1)";
    case TiffKind::picture: break;
  }
  return nullptr;
}

}  // namespace ditto::formats
