// What `ditto encode` keeps, written and read: samples, sides of pictures, lengths of texts, and what is refused.
#include "core/data/encoded_set.h"

#include <filesystem>

#include <doctest/doctest.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include "core/data/loader.h"
#include "core/data/sizes.h"
#include "core/encode/encoded_folder.h"
#include "core/encode/members.h"
#include "core/formats/file.h"
#include "support/files.h"

using namespace ditto;
using test::contains;
using test::TemporaryFolder;

namespace {

constexpr int64_t kInSet = 5, kInShard = 3, kNotThere = 4;

// Of labels, latents [2, 2] of both sides, and texts [-1, 2] with a mask.
EncodedNotes notes_of_set() {
  EncodedNotes notes;
  notes.batch = 2;
  notes.shard_samples = kInShard;
  notes.flip = true;
  notes.numerics = "fast";
  notes.data = {{"data.plugin", "\"synthetic\""}, {"data.height", "8"}};
  notes.encoders = {
      {"encoder.image", "vae", "vae 1, weights ab", "Float", "image", "mean", "clean", {{"draw", "\"mean\""}}}};
  notes.source = {{"image", at::kFloat, {1, kOwnSide, kOwnSide}, ""}, {"label", at::kLong, {}, "", 10}};
  notes.kept = {{"label", at::kLong, {}, "", 10}};
  notes.made = {
      {"mean", at::kFloat, {2, 2}, ""}, {"words", at::kFloat, {-1, 2}, ""}, {"words_mask", at::kBool, {-1}, ""}};
  notes.turn = {"mean"};
  notes.parts = {{"train", kInSet, 0, "five of them", {kInSet}}, {"validation", 1, kInSet, "one", {1}}};
  return notes;
}

torch::Tensor mean_of(int64_t i) {
  return torch::arange(4, torch::kFloat).view({2, 2}) + 10.0 * static_cast<double>(i);
}

void write_shard(const EncodedFolder& folder, const EncodedFolder::Shard& shard, int64_t mirrors_lack = -1) {
  EncodedFolder::Writer writer(folder, shard);
  const auto id = id_of(folder.notes());
  for (int64_t i = shard.first; i < shard.first + shard.samples; ++i) {
    const bool is_bad = shard.part->name == "train" && i == kNotThere;
    const auto key = encoded_key(shard.part->first + i);
    const int64_t length = 1 + i % 3;
    writer.add(key + "." + (is_bad ? EncodedSet::kBad : EncodedSet::kPlain),
               safetensors_member({{"label", torch::tensor(i, torch::kLong)},
                                   {"mean", mean_of(i)},
                                   {"words", torch::full({length, 2}, static_cast<float>(i))},
                                   {"words_mask", torch::ones({length}, torch::kBool)}},
                                  {{EncodedSet::kId, id},
                                   {EncodedSet::kSides, "8x1" + std::to_string(i)},
                                   {EncodedSet::kLength + std::string("words"), std::to_string(length)}}));
    if (is_bad || i == mirrors_lack) continue;
    writer.add(key + "." + EncodedSet::kMirrored, safetensors_member({{"mean", -mean_of(i)}}, {{EncodedSet::kId, id}}));
  }
  writer.finish();
}

void write_set(const std::string& path, size_t shards = 99) {
  EncodedFolder folder(path, notes_of_set());
  folder.prepare();
  for (size_t i = 0; i < std::min(shards, folder.shards().size()); ++i) write_shard(folder, folder.shards()[i]);
  if (shards >= folder.shards().size()) folder.finish();
}

}  // namespace

TEST_CASE("notes are read as they were written, and say what differs") {
  const auto notes = notes_of_set();
  const auto read = encoded_notes(to_json(notes).dump(), "encoded.json");
  CHECK(to_json(read) == to_json(notes));
  auto other = notes;
  other.data["data.height"] = "16";
  other.encoders.front().fingerprint = "vae 1, weights cd";
  const auto said = difference(to_json(notes), to_json(other));
  CHECK(contains(said, "data.height is 8 there and 16 here"));
  CHECK(contains(said, "fingerprint is vae 1, weights ab there and vae 1, weights cd here"));
  CHECK(difference(to_json(notes), to_json(read)).empty());
  for (const auto* bad : {"[]", R"({"version": 2})", R"({"version": 2, "format": 3})"})
    CHECK(contains(test::error_of(ErrorKind::data, [&] { encoded_notes(bad, "encoded.json"); }), "encoded.json"));
  for (const auto* old : {"{}", R"({"version": 1, "format": "safetensors"})"})
    CHECK(contains(test::error_of(ErrorKind::config, [&] { encoded_notes(old, "x"); }),
                   "is of version 1, and this ditto reads version 2"));
  auto cut = to_json(notes);
  cut["shard_samples"] = int64_t{1} << 50;
  CHECK(contains(test::error_of(ErrorKind::data, [&] { encoded_notes(cut.dump(), "x"); }), "shards of"));
}

TEST_CASE("samples that did not decode are counted") {
  const TemporaryFolder folder;
  write_set(folder / "set");
  CHECK(EncodedFolder(folder / "set", notes_of_set()).bad_samples() == 1);
}

TEST_CASE("samples come back in batches, with their texts padded and their lengths") {
  const TemporaryFolder folder;
  write_set(folder / "set");
  const auto set = std::make_shared<EncodedSet>(folder / "set", SplitOf::train);
  CHECK(set->size() == kInSet);
  CHECK(set->fingerprint() == "five of them");
  LoaderOptions options;
  options.threads = 0;
  options.shuffle = false;
  Loader loader(set, options, 0, {});
  const auto batch = loader.next({0, kInSet});
  CHECK(batch.weights == std::vector<double>{1, 1, 1, 1, 0});
  CHECK(batch.at("words").sizes().vec() == std::vector<int64_t>{kInSet, 3, 2});
  CHECK(batch.lengths.at("words") == std::vector<int64_t>{1, 2, 3, 1, 0});
  for (int64_t i = 0; i < kNotThere; ++i) {
    CHECK(batch.at("mean")[i].equal(mean_of(i)));
    CHECK(batch.at("label")[i].item<int64_t>() == i);
    CHECK(batch.at("words_mask")[i].sum().item<int64_t>() == 1 + i % 3);
  }
  CHECK(set->info(1).at("words") == std::vector<int64_t>{2, 2});
  CHECK(contains(test::error_of(ErrorKind::data, [&] { set->read(kNotThere); }), "did not decode when it was encoded"));
  CHECK(set->info(kNotThere).at("mean") == std::vector<int64_t>{2, 2});
  CHECK(set->sides_of_data(kNotThere) == std::vector<int64_t>{8, 14});
  CHECK(set->sides_of_data(1) == std::vector<int64_t>{8, 11});
  CHECK(find_sizes(*set, {{8, 11}}).learned == std::vector<SampleSize>{{8, 11}});
  const EncodedSet held_out(folder / "set", SplitOf::validation);
  CHECK(held_out.read(0).place == "validation-000000.tar:000005.safetensors");
}

TEST_CASE("a mirrored sample is the one that was encoded so") {
  const TemporaryFolder folder;
  write_set(folder / "set");
  const auto set = std::make_shared<EncodedSet>(folder / "set", SplitOf::train);
  LoaderOptions options;
  options.threads = 0;
  options.shuffle = false;
  options.flip = true;
  Loader loader(set, options, 0, {});
  int turned = 0;
  for (int64_t epoch = 0; epoch < 8; ++epoch) {
    const auto batch = loader.next({epoch * kInSet, kNotThere});
    for (int64_t i = 0; i < kNotThere; ++i) {
      const bool is_turned = batch.at("mean")[i].equal(-mean_of(i));
      CHECK((is_turned || batch.at("mean")[i].equal(mean_of(i))));
      turned += is_turned;
    }
  }
  CHECK((turned > 4 && turned < 28));
}

TEST_CASE("half a set, another set and a changed one are refused") {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& name) {
    return test::error_of(ErrorKind::config, [&] { EncodedSet(folder / name, SplitOf::train); });
  };
  CHECK(contains(refused("none"), "holds no encoded.json"));
  write_set(folder / "half", 1);
  CHECK(contains(refused("half"), "is half-written"));
  CHECK(EncodedFolder(folder / "half", notes_of_set()).prepare() == std::vector<uint8_t>{1, 0, 0});
  auto other = notes_of_set();
  other.batch = 3;
  const auto message = test::error_of(ErrorKind::config, [&] { EncodedFolder(folder / "half", other).prepare(); });
  CHECK(contains(message, "batch is 2 there and 3 here"));

  write_set(folder / "set");
  const auto path = folder / "set/train-000000.tar";
  auto bytes = formats::read_file(path, ErrorKind::data);
  const auto label = std::string("\x00\x00\x20\x41", 4);  // 10.0, of sample 1's mean
  bytes[bytes.find(label) + 1] = 1;
  formats::write_file(path, std::as_bytes(std::span(bytes)), ErrorKind::data);
  const EncodedSet set(folder / "set", SplitOf::train);
  CHECK_NOTHROW(set.read(0));
  CHECK(contains(test::error_of(ErrorKind::data, [&] { set.read(1); }), "holds other numbers than were written"));
}

TEST_CASE("a shard of another set, one that lacks samples and a length that was changed are refused") {
  const TemporaryFolder folder;
  write_set(folder / "set");
  const auto path = folder / "set/train-000000.tar";
  const auto whole = formats::read_file(path, ErrorKind::data);
  const auto with = [&](std::string from, const std::string& to) {
    auto bytes = whole;
    const auto at = bytes.find(from);
    REQUIRE(at != bytes.npos);
    bytes.replace(at, to.size(), to);
    formats::write_file(path, std::as_bytes(std::span(bytes)), ErrorKind::data);
    return EncodedSet(folder / "set", SplitOf::train);
  };
  const auto id = id_of(notes_of_set());
  const auto message = [](ErrorKind kind, const EncodedSet& set) {
    return test::error_of(kind, [&] { (void)set.read(0, EncodedSet::Side::as_it_is); });
  };
  CHECK(contains(message(ErrorKind::config, with(id, "01234567")), "is of encoding 01234567, and encoded.json"));
  CHECK(contains(message(ErrorKind::data, with("\"length.words\":\"1\"", "\"length.words\":\"0\"")),
                 "holds other numbers than were written"));
  auto other = notes_of_set();
  other.encoders.front().fingerprint = "vae 1, weights cd";
  CHECK(id_of(other) != id);

  const EncodedFolder lacking(folder / "set", notes_of_set());
  write_shard(lacking, lacking.shards().front(), 1);
  CHECK(contains(message(ErrorKind::config, EncodedSet(folder / "set", SplitOf::train)),
                 "train-000000.tar: lacks 1 of its 3 mirrored samples"));
  EncodedFolder::Writer nothing(lacking, lacking.shards().front());
  nothing.add("000000.json", "{}");
  nothing.finish();
  CHECK(contains(message(ErrorKind::config, EncodedSet(folder / "set", SplitOf::train)), "lacks 3 of its 3 samples"));
}

TEST_CASE("the bytes of a set do not depend on when its shards were written") {
  const TemporaryFolder folder;
  write_set(folder / "one");
  write_set(folder / "parts", 2);
  test::write_text(folder / "parts/train-000001.tar.unfinished-77", "cut");
  std::filesystem::remove(folder / "parts/train-000000.tar");
  write_set(folder / "parts");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder / "one")) {
    if (!entry.is_regular_file()) continue;
    const auto name = entry.path().lexically_relative(folder / "one").string();
    CHECK(formats::read_file(entry.path().string(), ErrorKind::data) ==
          formats::read_file(folder / "parts/" + name, ErrorKind::data));
  }
  CHECK(!std::filesystem::exists(folder / "parts/encoded.json.unfinished"));
  CHECK(!std::filesystem::exists(folder / "parts/train-000001.tar.unfinished-77"));
}
