#include "core/diff/events.h"

#include <algorithm>
#include <fstream>
#include <type_traits>

#include <ditto/error.h>

namespace ditto::diff {

namespace {

// Between processes of one program on one machine.
class Writer {
 public:
  explicit Writer(const std::string& path) : path_(path), file_(path, std::ios::binary) {}
  template <class T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    file_.write(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put(const std::string& text) {
    put(text.size());
    file_.write(text.data(), static_cast<std::streamsize>(text.size()));
  }
  void put(const std::vector<int64_t>& list) {
    put(list.size());
    for (const int64_t one : list) put(one);
  }
  void close() {
    if (!file_.flush()) throw Error(ErrorKind::data, path_, "cannot be written", "make room there, or set TMPDIR");
  }

 private:
  std::string path_;
  std::ofstream file_;
};

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), file_(path, std::ios::binary) {}
  bool has_more() { return file_.peek() != std::ifstream::traits_type::eof(); }
  template <class T>
  void get(T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (!file_.read(reinterpret_cast<char*>(&value), sizeof value)) fail();
  }
  void get(std::string& text) {
    text.resize(count());
    if (!file_.read(text.data(), static_cast<std::streamsize>(text.size()))) fail();
  }
  void get(std::vector<int64_t>& list) {
    list.resize(count());
    for (int64_t& one : list) get(one);
  }
  size_t count() {
    size_t number = 0;
    get(number);
    return number;
  }

 private:
  [[noreturn]] void fail() const {
    throw Error(ErrorKind::data, path_, "was cut off", "make room there, or set TMPDIR");
  }
  std::string path_;
  std::ifstream file_;
};

}  // namespace

const char* name(Pass pass) {
  return pass == Pass::forward ? "forward" : pass == Pass::backward ? "backward" : "update";
}

std::string to_text(const Key& key) {
  const std::string what = (key.pass == Pass::backward ? "gradient of " : "") + key.tensor;
  return "step " + std::to_string(key.step) + ", " + name(key.pass) + ", " + key.unit + ", " + key.op + ": " + what;
}

void Events::add(const Key& key, const Event& like, const Samples& samples, std::vector<int64_t> shape, Piece piece) {
  auto [it, is_new] = events_.try_emplace(key);
  Event& event = it->second;
  if (is_new) event = {like.order, like.kind, like.is_of_op, like.dtype, like.by, {}};
  auto& parts = event.parts[samples];
  if (parts.pieces.empty()) parts.shape = std::move(shape);
  const bool known = std::any_of(parts.pieces.begin(), parts.pieces.end(), [&](const Piece& other) {
    return other.rank == piece.rank && other.start == piece.start && other.size == piece.size &&
           other.print.hash == piece.print.hash;
  });
  if (!known) parts.pieces.push_back(std::move(piece));
}

void Events::write(const std::string& path) const {
  Writer file(path);
  for (const auto& [key, event] : events_) {
    file.put(key.step), file.put(key.pass), file.put(key.unit), file.put(key.op), file.put(key.tensor);
    file.put(event.order), file.put(event.kind), file.put(event.is_of_op);
    file.put(event.dtype), file.put(event.by);
    file.put(event.parts.size());
    for (const auto& [samples, parts] : event.parts) {
      file.put(samples), file.put(parts.shape), file.put(parts.pieces.size());
      for (const auto& piece : parts.pieces)
        file.put(piece.rank), file.put(piece.start), file.put(piece.size), file.put(piece.print);
    }
  }
  file.close();
}

void Events::merge(const std::string& path) {
  Reader file(path);
  while (file.has_more()) {
    Key key;
    file.get(key.step), file.get(key.pass), file.get(key.unit), file.get(key.op), file.get(key.tensor);
    Event like;
    file.get(like.order), file.get(like.kind), file.get(like.is_of_op);
    file.get(like.dtype), file.get(like.by);
    for (size_t left = file.count(); left > 0; --left) {
      Samples samples;
      std::vector<int64_t> shape;
      file.get(samples), file.get(shape);
      for (size_t pieces = file.count(); pieces > 0; --pieces) {
        Piece piece;
        file.get(piece.rank), file.get(piece.start), file.get(piece.size), file.get(piece.print);
        add(key, like, samples, shape, std::move(piece));
      }
    }
  }
}

}  // namespace ditto::diff
