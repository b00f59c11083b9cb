#include "core/data/encoded_set.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <sstream>

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <ditto/error.h>

#include "core/formats/archive/shard.h"
#include "core/formats/tensor/npz.h"

namespace ditto {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kLengthBytes = 8;  // of a safetensors header

EncodedNotes::Part part_in(const EncodedNotes& notes, const std::string& folder, SplitOf split) {
  if (notes.format != EncodedNotes::kSafetensors)
    throw Error(ErrorKind::config, folder, "was encoded with --format " + notes.format + ", which [data] reads",
                "encode without --format, or name the shards in [data] and leave loader.encoded out");
  if (const auto* part = notes.part(split)) return *part;
  throw Error(ErrorKind::config, folder, "has no samples that are held out",
              "encode the recipe again with validate.every above 0, or set it to 0");
}

int64_t number_in(const std::string& text, const std::string& where) {
  int64_t number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc() || end != text.data() + text.size() || number < 0)
    throw Error(ErrorKind::data, where, "has a length or a side that is no number", "encode the recipe again");
  return number;
}

}  // namespace

EncodedSet::EncodedSet(const std::string& folder, SplitOf split)
    : notes_(read_encoded_notes(folder)),
      id_(id_of(notes_)),
      part_(part_in(notes_, folder, split)),
      specs_(notes_.kept) {
  specs_.insert(specs_.end(), notes_.made.begin(), notes_.made.end());
  for (auto& spec : specs_) spec.turns_with_image = notes_.turn.count(spec.name) > 0;
  for (int64_t i = 0; i < part_.shards(notes_.shard_samples); ++i) {
    const auto name = part_.shard(i);
    shards_.push_back({name, formats::RandomFile::open((fs::path(folder) / name).string()), nullptr});
  }
}

std::shared_ptr<const EncodedSet::Index> EncodedSet::index_of(const Shard& shard, int64_t first,
                                                              int64_t samples) const {
  auto index = std::make_shared<Index>();
  index->plain.resize(static_cast<size_t>(samples));
  index->mirrored.resize(static_cast<size_t>(samples));
  for (const auto& sample : formats::shard_samples(formats::index_tar(*shard.file), shard.name)) {
    const auto number = number_in(sample.key, shard.name + ":" + sample.key) - first;
    if (number < 0 || number >= samples)
      throw Error(ErrorKind::data, shard.name + ":" + sample.key, "is a sample of another shard",
                  "encode the recipe again");
    const auto take = [&](const char* extension, std::vector<Member>& into, bool is_bad = false) {
      if (const auto* member = sample.find(extension))
        into[static_cast<size_t>(number)] = {member->offset, member->size, is_bad};
    };
    take(kBad, index->plain, true);
    take(kPlain, index->plain);
    take(kMirrored, index->mirrored);
  }
  require_whole(*index, shard.name);
  return index;
}

// No sample is left out for it: the loader would go on with others than those of the recipe.
void EncodedSet::require_whole(const Index& index, const std::string& shard) const {
  int64_t plain = 0, mirrored = 0;
  for (size_t i = 0; i < index.plain.size(); ++i) {
    plain += index.plain[i].bytes == 0;
    mirrored += notes_.flip && !index.plain[i].is_bad && index.mirrored[i].bytes == 0;
  }
  if (plain + mirrored > 0)
    throw Error(ErrorKind::config, shard,
                fmt::format("lacks {} of its {} {}", plain > 0 ? plain : mirrored, index.plain.size(),
                            plain > 0 ? "samples" : "mirrored samples"),
                "encode the recipe again, into another folder");
}

void EncodedSet::require_own(const formats::Metadata& said, const std::string& where) const {
  const auto id = said.find(kId);
  if (id != said.end() && id->second == id_) return;
  throw Error(ErrorKind::config, where,
              "is of encoding " + (id == said.end() ? "none" : id->second) + ", and " + EncodedNotes::kFile +
                  " beside it of " + id_,
              "encode the recipe again, into another folder");
}

std::string EncodedSet::crc_of(std::span<const std::byte> tensors, const formats::Metadata& said) {
  auto crc = formats::crc32(tensors);
  for (const auto& [key, value] : said) {
    if (key == kCrc) continue;
    const auto line = key + "=" + value + "\n";
    crc = formats::crc32(std::as_bytes(std::span(line)), crc);
  }
  return fmt::format("{:08x}", crc);
}

EncodedSet::Place EncodedSet::place(int64_t index, Side side) const {
  const auto number = index / notes_.shard_samples, at = index % notes_.shard_samples;
  std::shared_ptr<const Index> of_shard;
  auto& shard = shards_.at(static_cast<size_t>(number));
  {
    const std::lock_guard lock(mutex_);
    if (!shard.index)
      shard.index = index_of(shard, part_.first + number * notes_.shard_samples,
                             std::min(notes_.shard_samples, part_.samples - number * notes_.shard_samples));
    of_shard = shard.index;
  }
  const bool plain = side == Side::as_it_is;
  const auto member = (plain ? of_shard->plain : of_shard->mirrored).at(static_cast<size_t>(at));
  const auto* extension = member.is_bad ? kBad : plain ? kPlain : kMirrored;
  return {&shard, member, shard.name + ":" + encoded_key(part_.first + index) + "." + extension};
}

void EncodedSet::load(const Place& place, Encoded& into) const {
  const auto bytes = formats::read_member(*place.shard->file, place.member.offset, place.member.bytes, place.where);
  const std::span<const std::byte> all(bytes);
  const auto reader = formats::SafetensorsReader::parse(all, place.where, ErrorKind::data);
  const auto header = formats::safetensors_header_bytes(all.first(std::min<size_t>(all.size(), kLengthBytes)),
                                                        all.size(), place.where, ErrorKind::data);
  const auto& said = reader.metadata();
  require_own(said, place.where);
  if (const auto crc = said.find(kCrc); crc == said.end() || crc->second != crc_of(all.subspan(header), said))
    throw Error(ErrorKind::data, place.where, "holds other numbers than were written", "encode the recipe again");
  for (const auto& entry : reader.entries()) {
    const auto* spec = find(specs_, entry.name);
    if (!spec) continue;
    auto tensor = at::empty(entry.shape, at::TensorOptions(spec->dtype));
    if (static_cast<uint64_t>(tensor.nbytes()) != entry.bytes)
      throw Error(ErrorKind::data, place.where,
                  "has \"" + entry.name + "\" of another type than " + EncodedNotes::kFile + " says",
                  "encode the recipe again");
    reader.read(entry, {static_cast<std::byte*>(tensor.mutable_data_ptr()), static_cast<size_t>(tensor.nbytes())});
    into.sample.tensors[entry.name] = tensor;
  }
  const std::string prefix = kLength;
  for (const auto& [key, value] : said)
    if (key.starts_with(prefix)) into.lengths[key.substr(prefix.size())] = number_in(value, place.where);
}

EncodedSet::Encoded EncodedSet::read(int64_t index, Side side) const {
  const auto plain = place(index, Side::as_it_is);
  if (plain.member.is_bad)
    throw Error(ErrorKind::data, plain.where, "did not decode when it was encoded",
                "mend the sample, and encode the recipe again, into another folder");
  Encoded encoded;
  encoded.sample.place = plain.where;
  load(plain, encoded);
  if (side == Side::mirrored && notes_.flip) load(place(index, side), encoded);
  return encoded;
}

formats::SafetensorsReader EncodedSet::header_of(const Place& plain) const {
  const auto& file = *plain.shard->file;
  const auto length = file.read(plain.member.offset, std::min(plain.member.bytes, kLengthBytes), plain.where);
  const auto header = formats::safetensors_header_bytes(length, plain.member.bytes, plain.where, ErrorKind::data);
  const auto beginning = file.read(plain.member.offset, header, plain.where);
  auto reader = formats::SafetensorsReader::parse(beginning, plain.member.bytes, plain.where, ErrorKind::data);
  require_own(reader.metadata(), plain.where);
  return reader;
}

SampleInfo EncodedSet::info(int64_t index) const {
  SampleInfo shapes;
  for (const auto& entry : header_of(place(index, Side::as_it_is)).entries()) shapes[entry.name] = entry.shape;
  return shapes;
}

std::vector<int64_t> EncodedSet::sides_of_data(int64_t index) const {
  const auto plain = place(index, Side::as_it_is);
  const auto reader = header_of(plain);
  const auto said = reader.metadata().find(kSides);
  std::vector<int64_t> sides;
  if (said == reader.metadata().end()) return sides;
  std::istringstream list(said->second);
  for (std::string side; std::getline(list, side, 'x');) sides.push_back(number_in(side, plain.where));
  return sides;
}

TensorSpecs specs_before_encoders(const Source& source) {
  const auto* encoded = dynamic_cast<const EncodedSet*>(&source);
  return encoded ? encoded->encoding().source : source.makes();
}

}  // namespace ditto
