#include "core/data/encoded_set.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <span>

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <ditto/error.h>

#include "core/formats/archive/shard.h"
#include "core/formats/tensor/npz.h"
#include "core/formats/tensor/safetensors.h"

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
    throw Error(ErrorKind::data, where, "has a length that is no number", "encode the recipe again");
  return number;
}

}  // namespace

EncodedSet::EncodedSet(const std::string& folder, SplitOf split)
    : notes_(read_encoded_notes(folder)), part_(part_in(notes_, folder, split)), specs_(notes_.kept) {
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
    const auto take = [&](const char* extension, std::vector<Member>& into) {
      if (const auto* member = sample.find(extension))
        into[static_cast<size_t>(number)] = {member->offset, member->size};
    };
    take(kPlain, index->plain);
    take(kMirrored, index->mirrored);
  }
  return index;
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
  return {&shard, member, shard.name + ":" + encoded_key(part_.first + index) + "." + (plain ? kPlain : kMirrored)};
}

void EncodedSet::load(const Place& place, Encoded& into) const {
  const auto bytes = formats::read_member(*place.shard->file, place.member.offset, place.member.bytes, place.where);
  const std::span<const std::byte> all(bytes);
  const auto reader = formats::SafetensorsReader::parse(all, place.where, ErrorKind::data);
  const auto header = formats::safetensors_header_bytes(all.first(std::min<size_t>(all.size(), kLengthBytes)),
                                                        all.size(), place.where, ErrorKind::data);
  const auto& said = reader.metadata();
  if (const auto crc = said.find(kCrc);
      crc == said.end() || crc->second != fmt::format("{:08x}", formats::crc32(all.subspan(header))))
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
  if (plain.member.bytes == 0)
    throw Error(ErrorKind::data, plain.where, "is not there: it did not decode when it was encoded",
                "mend the sample, and encode the recipe again");
  Encoded encoded;
  encoded.sample.place = plain.where;
  load(plain, encoded);
  if (side == Side::mirrored)
    if (const auto mirrored = place(index, side); mirrored.member.bytes > 0) load(mirrored, encoded);
  return encoded;
}

SampleInfo EncodedSet::info(int64_t index) const {
  const auto plain = place(index, Side::as_it_is);
  if (plain.member.bytes == 0) (void)read(index, Side::as_it_is);  // which says why
  const auto& file = *plain.shard->file;
  const auto length = file.read(plain.member.offset, std::min(plain.member.bytes, kLengthBytes), plain.where);
  const auto header = formats::safetensors_header_bytes(length, plain.member.bytes, plain.where, ErrorKind::data);
  const auto beginning = file.read(plain.member.offset, header, plain.where);
  const auto reader = formats::SafetensorsReader::parse(beginning, plain.member.bytes, plain.where, ErrorKind::data);
  SampleInfo shapes;
  for (const auto& entry : reader.entries()) shapes[entry.name] = entry.shape;
  return shapes;
}

TensorSpecs specs_before_encoders(const Source& source) {
  const auto* encoded = dynamic_cast<const EncodedSet*>(&source);
  return encoded ? encoded->encoding().source : source.makes();
}

}  // namespace ditto
