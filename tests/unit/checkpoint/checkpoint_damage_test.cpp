// Checkpoints that lost or changed bytes: found, named, and stepped over.
//
// Claim (failures): A flipped bit or a cut in any file of a checkpoint is found, and the file named.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include <random>

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/disk.h"
#include "core/checkpoint/index.h"
#include "core/checkpoint/manifest.h"
#include "core/checkpoint/reader.h"
#include "core/checkpoint/snapshot.h"
#include "core/formats/tensor/safetensors.h"
#include "support/checkpoint_world.h"
#include "support/files.h"

namespace fs = std::filesystem;
namespace checkpoint = ditto::checkpoint;
using ditto::Axis;
using ditto::ErrorKind;
using namespace ditto::test;

namespace {

// Two good steps; the newer one is harmed and mended again and again.
class Damage {
 public:
  Damage() {
    save_world(folder_ / "c", kTwo, 1, 500);
    save_world(folder_ / "c", kTwo, 2, 600);
    for (const auto& item : fs::directory_iterator(path())) files_[item.path().filename()] = read_text(item.path());
  }
  std::string path() const { return folder_ / "c/step_00000600"; }
  const std::map<std::string, std::string>& files() const { return files_; }
  void mend(const std::string& file) const { write_text(path() + "/" + file, files_.at(file)); }

  // The harm is seen, named, refused by load, and the step before is found.
  void check(const std::string& file) const {
    const auto problems = checkpoint::verify(path());
    REQUIRE_MESSAGE(!problems.empty(), file);
    CHECK_MESSAGE(contains(problems[0], file), problems[0]);
    const auto found = checkpoint::find(folder_ / "c");
    CHECK(found.path == folder_ / "c/step_00000500");
    REQUIRE(found.skipped.size() == 1);
    CHECK(contains(found.skipped[0], "skipped step_00000600: "));
    CHECK(contains(found.skipped[0], file));
    Rank rank({}, 0, 3), before({}, 0, 3);
    const std::string error = error_of(ErrorKind::checkpoint, [&] {
      auto state = rank.state();
      checkpoint::load(path(), state);
    });
    CHECK_MESSAGE(contains(error, file), error);
    CHECK(rank.same_as(before));
  }

 private:
  static inline const Degrees kTwo{{Axis::tensor, 2}};
  TemporaryFolder folder_;
  std::map<std::string, std::string> files_;
};

}  // namespace

TEST_CASE("a flipped bit in any file, anywhere, is found and the file is named") {
  const Damage damage;
  std::mt19937 random(7);
  for (const auto& [file, text] : damage.files()) {
    for (int i = 0; i < 25; ++i) {
      std::string changed = text;
      changed[random() % text.size()] ^= static_cast<char>(1 << random() % 8);
      write_text(damage.path() + "/" + file, changed);
      damage.check(file);
    }
    damage.mend(file);
  }
  CHECK(checkpoint::verify(damage.path()).empty());
}

TEST_CASE("every single byte of the manifest counts") {
  const Damage damage;
  const std::string text = damage.files().at("manifest.json");
  for (size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] ^= 1;
    CHECK(!error_of(ErrorKind::checkpoint, [&] { checkpoint::parse_manifest(changed, "m"); }).empty());
  }
  CHECK(checkpoint::parse_manifest(text, "m").files.size() == damage.files().size() - 1);
}

TEST_CASE("a manifest of another format, or whose checksums do not fit the sizes, is refused by name") {
  const auto error = [](const std::string& body) {
    const std::string text =
        body + ",\n\"xxh3_128_of_the_text_above\": \"" + checkpoint::checksum(as_bytes(body)) + "\"\n}\n";
    return error_of(ErrorKind::checkpoint, [&] { checkpoint::parse_manifest(text, "manifest.json"); });
  };
  const auto one = [](const std::string& chunk_bytes, const std::string& bytes, const std::string& sums) {
    return R"({"format": 2, "chunk_bytes": )" + chunk_bytes + R"(, "files": [{"name": "f", "bytes": )" + bytes +
           R"(, "xxh3_128": )" + sums + "}]";
  };
  CHECK(error(one("8", "0", "[]")).empty());
  CHECK(error(one("8", "16", R"(["a", "b"])")).empty());
  CHECK(contains(error(one("8", "17", R"(["a", "b"])")), "manifest.json: has 2 checksums for the 3 chunks of f"));
  const std::string twice = R"({"name": "f", "bytes": 1, "xxh3_128": ["a"]})";
  CHECK(contains(error(R"({"format": 2, "chunk_bytes": 8, "files": [)" + twice + ", " + twice + "]"), "lists f twice"));
  const std::string before = R"({"format": 1, "files": [{"name": "f", "bytes": 8, "xxh3_128": "a"}])";
  CHECK(contains(error(before), "manifest.json: has format 1, this program reads format 2"));
  for (const auto& bad :
       {one("0", "0", "[]"), one("8", "8", R"("a")"), one("8", "8", "[1]"), one("8", "18446744073709551615", "[]"),
        one("99999999999", "1", R"(["a"])"), std::string(R"({"format": 2, "files": [])")})
    CHECK_MESSAGE(contains(error(bad), "manifest.json"), bad);
}

TEST_CASE("a state of any other shape is refused by the field that is wrong") {
  const auto error = [](const std::string& field, const std::string& value) {
    std::map<std::string, std::string> fields{{"format", "1"}, {"step", "3"},      {"samples", "48"}, {"seed", "7"},
                                              {"ranks", "2"},  {"counters", "{}"}, {"extra", "{}"}};
    fields[field] = value;
    std::string text;
    for (const auto& [name, part] : fields)
      if (!part.empty()) text += (text.empty() ? "{\"" : ", \"") + name + "\": " + part;
    return error_of(ErrorKind::checkpoint, [&] { checkpoint::parse_state(text + "}", "state.json"); });
  };
  CHECK(error("seed", "18446744073709551615").empty());
  CHECK(error("counters", R"({"steps": -1})").empty());
  for (const char* field : {"format", "step", "samples", "seed", "ranks", "counters", "extra"})
    for (const char* value : {"", "null", "true", "\"3\"", "1.5", "1e30", "[3]"}) {
      const std::string said = error(field, value), where = "state.json: its \"" + std::string(field) + "\" ";
      CHECK_MESSAGE(said.starts_with(where + (*value ? "is " : "is missing")), value << " gives " << said);
    }
  for (const char* field : {"step", "samples", "seed", "ranks"}) {
    CHECK(contains(error(field, "-1"), "whole number"));
    CHECK(contains(error(field, "18446744073709551616"), "whole number"));
  }
  CHECK(contains(error("step", "1000000000000000000"), "whole number"));
  CHECK(contains(error("ranks", "0"), "from 1 to"));
  CHECK(contains(error("format", "2"), "has format 2, this program reads format 1"));
  CHECK(contains(error("counters", R"({"steps": "many"})"), "its \"steps\" is \"many\""));
  CHECK(contains(error("extra", R"({"updates": 3})"), "its \"updates\" is 3; a string is expected"));
  for (const char* text : {"", "[]", "3", "null", "{"})
    CHECK(
        contains(error_of(ErrorKind::checkpoint, [&] { checkpoint::parse_state(text, "state.json"); }), "state.json"));
}

TEST_CASE("checksums of chunks do not depend on the parts that the bytes came in") {
  constexpr size_t kChunk = checkpoint::kChunkBytes;
  std::string text(3 * kChunk + 5, 'x');
  for (size_t i = 0; i < text.size(); i += 1000) text[i] = static_cast<char>(i / 1000);
  std::vector<std::string> expected;
  for (size_t at = 0; at < text.size(); at += kChunk)
    expected.push_back(checkpoint::checksum(as_bytes(text).subspan(at, std::min(kChunk, text.size() - at))));
  for (const size_t part : {size_t{7777}, kChunk - 1, kChunk, kChunk + 1, 2 * kChunk, text.size()}) {
    checkpoint::ChunkHasher hasher;
    for (size_t at = 0; at < text.size(); at += part)
      hasher.update(as_bytes(text).subspan(at, std::min(part, text.size() - at)));
    CHECK(hasher.finish() == expected);
  }
  CHECK(checkpoint::ChunkHasher().finish().empty());
}

TEST_CASE("a file that is cut off or has more bytes is found and named") {
  const Damage damage;
  for (const auto& [file, text] : damage.files()) {
    for (const size_t size : {size_t{0}, text.size() / 2, text.size() - 1}) {
      write_text(damage.path() + "/" + file, text.substr(0, size));
      damage.check(file);
    }
    write_text(damage.path() + "/" + file, text + "\n");
    damage.check(file);
    damage.mend(file);
  }
}

TEST_CASE("a file that is missing is named") {
  const Damage damage;
  for (const auto& [file, text] : damage.files()) {
    fs::remove(damage.path() + "/" + file);
    damage.check(file);
    damage.mend(file);
  }
}

TEST_CASE("a folder where a file should be is an error, not a crash") {
  const Damage damage;
  fs::remove(damage.path() + "/state.json");
  fs::create_directory(damage.path() + "/state.json");
  damage.check("state.json");
}

TEST_CASE("an index that does not hold is refused by name") {
  const auto error = [](const std::string& text) {
    return error_of(ErrorKind::checkpoint, [&] { checkpoint::parse_index(text, "index.json"); });
  };
  const auto one = [](const std::string& shape, const std::string& start, const std::string& size) {
    return R"({"format":1,"tensors":{"model":{"w":{"dtype":"F32","shape":)" + shape +
           R"(,"pieces":[{"file":"f","tensor":"w","start":)" + start + R"(,"size":)" + size + "}]}}}}";
  };
  CHECK(error(one("[4,2]", "[0,0]", "[4,2]")).empty());
  CHECK(error(one("[]", "[]", "[]")).empty());
  for (const auto& bad :
       {one("[4,2]", "[1,0]", "[4,2]"), one("[4,2]", "[-1,0]", "[4,2]"), one("[4,2]", "[0,0]", "[4,0]"),
        one("[4,2]", "[0]", "[4]"), one("[4,2]", "[9223372036854775807,0]", "[1,1]"), one("[-4,2]", "[0,0]", "[1,1]"),
        one("[4611686018427387904,4]", "[0,0]", "[1,1]"), one("[4,2.5]", "[0,0]", "[1,1]"), std::string("{}"),
        std::string("[]"), std::string("nonsense"), std::string(R"({"format":2,"tensors":{}})"),
        std::string(R"({"format":1,"tensors":{"model":3}})")})
    CHECK_MESSAGE(contains(error(bad), "index.json"), bad);
}

TEST_CASE("a file that is changed after it was read, in whatever way, is named") {
  const Damage damage;
  for (const auto& [file, text] : damage.files()) {
    if (file == "manifest.json") continue;
    for (int how = 0; how < 4; ++how) {
      checkpoint::Reader reader(damage.path());
      for (const auto& record : reader.manifest().files) reader.check_file(record.name);
      CHECK(reader.changed().empty());
      const std::string path = damage.path() + "/" + file;
      if (how == 0) fs::resize_file(path, text.size() / 2);
      if (how == 1) fs::remove(path);
      if (how == 2) write_text(path, std::string(text.size(), 'x'));
      if (how == 3) {
        write_text(path + ".new", text);  // another file in its place
        fs::rename(path + ".new", path);
      }
      const auto lines = reader.changed();
      REQUIRE(lines.size() == 1);
      CHECK_MESSAGE(contains(lines[0], file), lines[0]);
      CHECK_MESSAGE(contains(lines[0], how == 1 ? "was removed while it was read" : "was changed while it was read"),
                    lines[0]);
      damage.mend(file);
    }
  }
}

namespace {

using checkpoint::Box;

// Cuts the box at random places until it is in about so many pieces.
std::vector<Box> random_pieces(const Box& whole, size_t count, std::mt19937& random) {
  std::vector<Box> pieces{whole};
  for (size_t tries = 0; pieces.size() < count && tries < 20 * count; ++tries) {
    Box& piece = pieces[random() % pieces.size()];
    if (piece.start.empty()) break;
    const size_t dim = random() % piece.start.size();
    if (piece.size[dim] < 2) continue;
    const int64_t first = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(piece.size[dim] - 1));
    Box rest = piece;
    rest.start[dim] += first;
    rest.size[dim] -= first;
    piece.size[dim] = first;
    pieces.push_back(rest);
  }
  return pieces;
}

// Each number of the whole counted by itself.
bool fill_by_counting(const Box& whole, const std::vector<Box>& pieces) {
  std::vector<int> counts(static_cast<size_t>(checkpoint::numbers(whole.size)));
  for (size_t at = 0; at < counts.size(); ++at) {
    auto rest = static_cast<int64_t>(at);
    Box one{whole.start, checkpoint::Dims(whole.size.size(), 1)};
    for (size_t d = whole.size.size(); d-- > 0; rest /= whole.size[d]) one.start[d] += rest % whole.size[d];
    for (const Box& piece : pieces) counts[at] += checkpoint::intersection(piece, one).has_value();
  }
  return std::all_of(counts.begin(), counts.end(), [](int count) { return count == 1; });
}

bool fill(const Box& whole, const std::vector<Box>& pieces) {
  checkpoint::Tiling tiling(whole);
  for (const Box& piece : pieces) tiling.add(piece);
  return tiling.is_filled();
}

std::vector<const Box*> pointers_to(const std::vector<Box>& boxes) {
  std::vector<const Box*> pointers;
  for (const Box& box : boxes) pointers.push_back(&box);
  return pointers;
}

}  // namespace

TEST_CASE("pieces fill a tensor if and only if each of its numbers is in one of them") {
  std::mt19937 random(11);
  const std::vector<Box> wholes{{{}, {}},
                                {{3}, {40}},
                                {{0, 5}, {12, 9}},
                                {{2, 0, 1}, {6, 5, 7}},
                                {{0, 0, 0, 0}, {3, 4, 2, 5}},
                                {{0, 0, 0, 0, 0, 0, 0, 0}, {2, 2, 1, 2, 2, 2, 2, 2}}};
  int filled = 0, not_filled = 0;
  for (const Box& whole : wholes)
    for (int i = 0; i < 30; ++i) {
      auto pieces = random_pieces(whole, 1 + random() % 25, random);
      std::shuffle(pieces.begin(), pieces.end(), random);
      const int change = i % 6;
      Box& one = pieces[random() % pieces.size()];
      if (change == 1) pieces.erase(pieces.begin());
      if (change == 2) pieces.push_back(Box(one));
      if (change == 3) one = pieces.front();  // twice, and another is not there
      if (change == 4 && !one.start.empty() && one.start[0] > whole.start[0]) one.start[0] -= 1;
      if (change == 5 && !one.start.empty() && one.size.back() > 1) one.size.back() -= 1;
      const bool expected = fill_by_counting(whole, pieces);
      (expected ? filled : not_filled) += 1;
      CHECK(fill(whole, pieces) == expected);
      const auto two = checkpoint::two_that_meet(pointers_to(pieces));
      bool some_meet = false;
      for (size_t a = 0; a < pieces.size(); ++a)
        for (size_t b = 0; b < a; ++b)
          some_meet = some_meet || checkpoint::intersection(pieces[a], pieces[b]).has_value();
      CHECK(two.has_value() == some_meet);
      if (two) CHECK(checkpoint::intersection(pieces[two->first], pieces[two->second]));
    }
  CHECK(filled > 40);
  CHECK(not_filled > 40);
  // No plane cuts these five apart.
  const std::vector<Box> wheel{
      {{0, 0}, {2, 1}}, {{2, 0}, {1, 2}}, {{1, 2}, {2, 1}}, {{0, 1}, {1, 2}}, {{1, 1}, {1, 1}}};
  CHECK(fill({{0, 0}, {3, 3}}, wheel));
  CHECK(!fill({{0, 0}, {3, 3}}, {wheel.begin(), wheel.end() - 1}));
}

namespace {

// A checkpoint of one tensor, in so many pieces of one number; `change` of its index. The numbers' file stays where it
// is there. Without LibTorch, whose threads a forked process has not.
void save_in_pieces(const std::string& folder, int64_t count,
                    const std::function<void(std::vector<checkpoint::Piece>&)>& change) {
  fs::create_directories(folder);
  const std::string file = "model-00000.safetensors", path = folder + "/" + file;
  checkpoint::IndexedTensor tensor{"F32", {count / 100, 100}, {}};
  std::vector<ditto::formats::TensorDeclaration> declared;
  for (int64_t i = 0; i < count; ++i) {
    const Box box{{i / 100, i % 100}, {1, 1}};
    tensor.pieces.push_back({file, checkpoint::piece_name("w", box, tensor.shape), box});
    declared.push_back({tensor.pieces.back().tensor, ditto::formats::Dtype::f32, box.size});
  }
  if (!fs::exists(path)) {
    ditto::formats::SafetensorsWriter writer(path, std::move(declared));
    for (const auto& name : writer.order()) writer.write(name, as_bytes("1234"));
    writer.finish();
  }
  change(tensor.pieces);
  const auto bytes = read_text(path);
  checkpoint::ChunkHasher hasher;
  hasher.update(as_bytes(bytes));
  checkpoint::Snapshot snapshot;
  snapshot.index.sections[checkpoint::kModel]["w"] = std::move(tensor);
  checkpoint::write_manifest(folder, {{file, bytes.size(), hasher.finish()}}, snapshot.index, snapshot);
}

struct Cost {
  int code;
  double seconds;
  int64_t mib;
};

// Of a process of its own, as `ditto checkpoint verify` is one.
Cost cost_of(const std::function<int()>& work) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(work());
  int status = 0;
  struct rusage usage {};
  REQUIRE(::wait4(child, &status, 0, &usage) == child);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, seconds(usage.ru_utime) + seconds(usage.ru_stime),
          usage.ru_maxrss / 1024};
}

}  // namespace

TEST_CASE("a tensor in 200,000 pieces is verified in 3 s of a processor's time and 512 MiB, whole or not") {
  constexpr int64_t kCount = 200'000;
  const std::map<std::string, std::function<void(std::vector<checkpoint::Piece>&)>> changes{
      {"", [](auto&) {}},
      {"hold the same numbers twice", [](auto& pieces) { pieces[kCount / 3].box = pieces[kCount / 2].box; }},
      {"of the 200000 numbers at [0, 0] the checkpoint holds 199999",
       [](auto& pieces) { pieces.erase(pieces.begin() + 7); }}};
  const TemporaryFolder folder;
  for (const auto& [words, change] : changes) {
    const auto made = cost_of([&, &change = change] {
      save_in_pieces(folder / "c", kCount, change);
      return 0;
    });
    REQUIRE(made.code == 0);
    const auto cost = cost_of([&, &words = words] {
      const auto lines = checkpoint::verify(folder / "c");
      return words.empty() ? !lines.empty() : lines.size() != 1 || !contains(lines[0], words);
    });
    CAPTURE(words);
    MESSAGE(cost.seconds, " s, ", cost.mib, " MiB");
    CHECK(cost.code == 0);
    CHECK(cost.seconds < 3);
    CHECK(cost.mib < 512);
  }
}
