#include "core/dataset/nv_meta.h"

#include <sqlite3.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>

#include <ditto/error.h>

#include "core/formats/archive/shard.h"
#include "core/formats/archive/tar.h"
#include "core/formats/file.h"

namespace ditto {

namespace {

constexpr const char* kSqlTables = R"(
CREATE TABLE samples (tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE, sample_index INTEGER NOT NULL,
                      byte_offset INTEGER, byte_size INTEGER);
CREATE TABLE sample_parts (tar_file_id INTEGER, sample_index INTEGER, part_name TEXT, content_byte_offset INTEGER,
                           content_byte_size INTEGER);
)";
constexpr const char* kSqlIndices = R"(
CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index);
CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset);
CREATE INDEX idx_sample_parts_full ON sample_parts(tar_file_id, sample_index, part_name, content_byte_offset,
                                                   content_byte_size);
)";

std::int64_t sql_integer(std::uint64_t value) { return static_cast<std::int64_t>(value); }

}  // namespace

struct NvMeta::Database {
  explicit Database(std::string file) : path(std::move(file)) {
    check(sqlite3_open(path.c_str(), &db));
    run("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;");  // it has no name before it is whole
    run(kSqlTables);
    check(sqlite3_prepare_v2(db, "INSERT INTO samples VALUES (?, ?, ?, ?, ?)", -1, &sample, nullptr));
    check(sqlite3_prepare_v2(db, "INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)", -1, &part, nullptr));
  }
  ~Database() { close(); }
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  void run(const char* sql) { check(sqlite3_exec(db, sql, nullptr, nullptr, nullptr)); }

  void check(int code) const {
    if (code == SQLITE_OK || code == SQLITE_DONE || code == SQLITE_ROW) return;
    throw Error(ErrorKind::data, path, std::string("cannot be written: ") + (db ? sqlite3_errmsg(db) : "no memory"));
  }

  // Numbers, and the one text that each row has, in the order of the columns.
  void insert(sqlite3_stmt* row, int text_column, const std::string& text,
              std::initializer_list<std::int64_t> numbers) {
    int column = 1;
    for (const std::int64_t number : numbers) {
      if (column == text_column) ++column;
      check(sqlite3_bind_int64(row, column++, number));
    }
    check(sqlite3_bind_text(row, text_column, text.data(), static_cast<int>(text.size()), SQLITE_TRANSIENT));
    check(sqlite3_step(row));
    check(sqlite3_reset(row));
  }

  void close() {
    sqlite3_finalize(sample);
    sqlite3_finalize(part);
    sqlite3_close(db);
    sample = part = nullptr;
    db = nullptr;
  }

  std::string path;
  sqlite3* db = nullptr;
  sqlite3_stmt *sample = nullptr, *part = nullptr;
};

std::vector<std::uint64_t> sample_starts(const formats::TarIndex& tar, const std::string& where) {
  std::vector<std::uint64_t> starts;
  for (const auto& sample : formats::shard_samples(tar, where)) starts.push_back(sample.header);
  starts.push_back(tar.end);
  return starts;
}

NvMeta::NvMeta(Begin begin, Fields fields) : begin_(std::move(begin)), fields_(fields) {
  database_ = std::make_unique<Database>(begin_(".nv-meta/index.sqlite"));
}

NvMeta::~NvMeta() = default;

void NvMeta::add(const std::string& name, const std::string& path, const std::string& split) {
  const auto tar = formats::index_tar(path);
  const auto samples = formats::shard_samples(tar, name);
  auto& database = *database_;
  const auto id = sql_integer(shards_.size());
  const auto starts = sample_starts(tar, name);
  database.run("BEGIN");
  for (std::size_t i = 0; i < samples.size(); ++i) {
    database.insert(database.sample, 2, samples[i].key,
                    {id, sql_integer(i), sql_integer(starts[i]), sql_integer(starts[i + 1] - starts[i])});
    for (const auto& one : samples[i].members) {
      database.insert(database.part, 3, one.extension,
                      {id, sql_integer(i), sql_integer(one.offset), sql_integer(one.size)});
      ++parts_[one.extension];
    }
  }
  database.run("COMMIT");
  formats::write_file(begin_(name + ".idx"), std::as_bytes(std::span(starts)), ErrorKind::data, formats::Sync::fsync);
  shards_.push_back({name, split, sql_integer(samples.size())});
  samples_ += sql_integer(samples.size());
}

void NvMeta::finish() {
  database_->run(kSqlIndices);
  const auto path = database_->path;
  database_->close();
  formats::sync_file(path, ErrorKind::data);
  write("index.uuid", uuid());
  write("dataset.yaml", dataset());
  write("split.yaml", splits());
  write(".info.json", info());
}

void NvMeta::write(const std::string& name, const std::string& text) const {
  formats::write_file(begin_(".nv-meta/" + name), std::as_bytes(std::span(text)), ErrorKind::data,
                      formats::Sync::fsync);
}

std::string NvMeta::info() const {
  nlohmann::ordered_json counts = nlohmann::ordered_json::object();
  for (const auto& shard : shards_) counts[shard.name] = shard.samples;
  return nlohmann::ordered_json{{"shard_counts", counts}}.dump(2) + "\n";
}

std::string NvMeta::splits() const {
  std::string text = "split_parts:\n";
  for (const char* split : {"train", "val", "test"}) {  // `energon lint` asks for all three
    std::string names;
    for (const auto& shard : shards_)
      if (shard.split == split) names += "  - " + shard.name + "\n";
    text += "  " + std::string(split) + ":" + (names.empty() ? " []\n" : "\n" + names);
  }
  return text + "exclude: []\n";
}

// What all samples have; of class and caption Energon's types have one, and it is the caption then.
std::string NvMeta::dataset() const {
  if (fields_ == Fields::none) return "__module__: megatron.energon\n__class__: CrudeWebdataset\n";
  const auto all_have = [&](const char* part) {
    const auto it = parts_.find(part);
    return it != parts_.end() && it->second == samples_;
  };
  const char* type = "ImageSample";
  std::string field;
  if (all_have("txt")) {
    type = "CaptioningSample";
    field = "  caption: txt\n";
  } else if (all_have("cls")) {
    type = "ImageClassificationSample";
    field = "  label: cls\n";
  }
  std::string pictures;
  for (const auto& [part, count] : parts_)
    if (part != "cls" && part != "txt" && part != "json") pictures += (pictures.empty() ? "" : ",") + part;
  return "sample_type:\n  __module__: megatron.energon\n  __class__: " + std::string(type) +
         "\nfield_map:\n  image: " + pictures + "\n" + field;
}

// Of the set itself, in the form that leaves its meaning to the maker (RFC 9562, version 8).
std::string NvMeta::uuid() const {
  const auto text = info() + splits() + dataset();
  const auto hash = XXH3_128bits(text.data(), text.size());
  std::array<unsigned char, 16> b{};
  std::memcpy(b.data(), &hash.high64, 8);
  std::memcpy(b.data() + 8, &hash.low64, 8);
  b[6] = static_cast<unsigned char>((b[6] & 0x0F) | 0x80);
  b[8] = static_cast<unsigned char>((b[8] & 0x3F) | 0x80);
  std::string out;
  char two[3];
  for (std::size_t i = 0; i < b.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned>(b[i]));
    out += two;
  }
  return out;
}

}  // namespace ditto
