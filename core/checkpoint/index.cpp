#include "core/checkpoint/index.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include <ditto/error.h>

#include "core/formats/text/json.h"

namespace ditto::checkpoint {

using nlohmann::json;

namespace {

constexpr int64_t kFormat = 1;
constexpr size_t kMaxDims = 64;
constexpr int64_t kMaxNumbers = int64_t{1} << 56;

json box_json(const Piece& piece) {
  return {{"file", piece.file}, {"tensor", piece.tensor}, {"start", piece.box.start}, {"size", piece.box.size}};
}

void check_shape(const Dims& shape, const std::string& where) {
  int64_t count = 1;
  const bool bad = shape.size() > kMaxDims || std::any_of(shape.begin(), shape.end(), [&](int64_t size) {
                     if (size < 0 || (size > 0 && count > kMaxNumbers / size)) return true;
                     count *= size;
                     return false;
                   });
  if (bad) throw Error(ErrorKind::checkpoint, where, "has the shape " + to_text(shape) + ", which no tensor has");
}

void check_box(const Box& box, const Dims& shape, const std::string& where) {
  bool bad = box.start.size() != shape.size() || box.size.size() != shape.size();
  for (size_t d = 0; !bad && d < shape.size(); ++d)
    bad = box.start[d] < 0 || box.size[d] < 1 || box.size[d] > shape[d] || box.start[d] > shape[d] - box.size[d];
  if (bad)
    throw Error(
        ErrorKind::checkpoint, where,
        "the piece at " + to_text(box.start) + " of size " + to_text(box.size) + " is not inside " + to_text(shape));
}

Dims dims_of(const json& list, const std::string& where) {
  Dims dims;
  for (const json& item : list) {
    if (!item.is_number_integer()) throw Error(ErrorKind::checkpoint, where, item.dump() + " is not a whole number");
    dims.push_back(item.get<int64_t>());
  }
  return dims;
}

constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;

uint64_t modulo(unsigned __int128 value) { return static_cast<uint64_t>(value % kPrime); }

// A number below the prime for each place along each dim, which nobody who writes a file knows.
uint64_t random_of(size_t dim, int64_t place) {
  static const uint64_t kKey = uint64_t{std::random_device{}()} << 32 | std::random_device{}();
  uint64_t x = kKey;
  for (const uint64_t word : {static_cast<uint64_t>(place), uint64_t{dim}}) {  // splitmix64
    x += word * 0xd1342543de82ef95 + 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    x ^= x >> 31;
  }
  return x % kPrime;
}

// The product over the dims of f(start) - f(end), for a random f of each dim.
uint64_t weight_of(const Box& box) {
  uint64_t product = 1;
  for (size_t d = 0; d < box.start.size(); ++d) {
    const uint64_t start = random_of(d, box.start[d]), end = random_of(d, box.start[d] + box.size[d]);
    product = modulo(static_cast<unsigned __int128>(product) * (start + kPrime - end));
  }
  return product;
}

bool meet(const Box& a, const Box& b) {
  for (size_t d = 0; d < a.start.size(); ++d)
    if (a.start[d] >= b.start[d] + b.size[d] || b.start[d] >= a.start[d] + a.size[d]) return false;
  return true;
}

// The dim along which the most boxes begin at places of their own.
size_t widest_dim(const std::vector<const Box*>& boxes) {
  size_t widest = 0, most = 0;
  for (size_t d = 0; d < boxes.front()->start.size(); ++d) {
    Dims starts;
    for (const Box* box : boxes) starts.push_back(box->start[d]);
    std::sort(starts.begin(), starts.end());
    const auto count = static_cast<size_t>(std::unique(starts.begin(), starts.end()) - starts.begin());
    if (count > most) most = count, widest = d;
  }
  return widest;
}

IndexedTensor parse_tensor(const json& value, const std::string& where) {
  IndexedTensor tensor{value.at("dtype").get<std::string>(), dims_of(value.at("shape"), where), {}};
  check_shape(tensor.shape, where);
  for (const json& item : value.at("pieces")) {
    Piece piece{item.at("file").get<std::string>(), item.at("tensor").get<std::string>(),
                Box{dims_of(item.at("start"), where), dims_of(item.at("size"), where)}};
    check_box(piece.box, tensor.shape, where);
    tensor.pieces.push_back(std::move(piece));
  }
  return tensor;
}

}  // namespace

std::optional<Box> intersection(const Box& a, const Box& b) {
  Box both{a.start, a.size};
  for (size_t d = 0; d < a.start.size(); ++d) {
    both.start[d] = std::max(a.start[d], b.start[d]);
    both.size[d] = std::min(a.start[d] + a.size[d], b.start[d] + b.size[d]) - both.start[d];
    if (both.size[d] <= 0) return std::nullopt;
  }
  return both;
}

int64_t numbers(const Dims& size) {
  int64_t count = 1;
  for (const int64_t n : size) count *= n;
  return count;
}

// Of boxes that count 1 wherever they are the sum over them is 1 in the whole and 0 around it if, and only if, it has
// the same corners, with the same signs: a sum over the corners with random numbers tells that but for one time in
// 10^16 (J. Schwartz, 1980: the sum is a polynomial in them, of as low a degree as there are dims).
Tiling::Tiling(const Box& whole) : numbers_(numbers(whole.size)), weight_(weight_of(whole)) {}

void Tiling::add(const Box& part) {
  held_ += static_cast<unsigned __int128>(numbers(part.size));
  sum_ = (sum_ + weight_of(part)) % kPrime;
}

bool Tiling::is_filled() const {
  if (numbers_ == 0) return held_ == 0;
  return held_ == static_cast<unsigned __int128>(numbers_) && sum_ == weight_;
}

int64_t Tiling::held() const {
  constexpr auto kMost = std::numeric_limits<int64_t>::max();
  return held_ > static_cast<unsigned __int128>(kMost) ? kMost : static_cast<int64_t>(held_);
}

std::optional<std::pair<size_t, size_t>> two_that_meet(const std::vector<const Box*>& boxes) {
  constexpr size_t kCompared = 4'000'000;
  if (boxes.size() < 2) return std::nullopt;
  const size_t dim = widest_dim(boxes);
  std::vector<size_t> order(boxes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto key = [&](size_t i) {
    return std::pair<int64_t, const Dims&>(boxes[i]->start.empty() ? 0 : boxes[i]->start[dim], boxes[i]->start);
  };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key(a) < key(b); });
  for (size_t apart = 1; apart < order.size() && (apart == 1 || apart * order.size() <= kCompared); ++apart)
    for (size_t i = apart; i < order.size(); ++i)
      if (meet(*boxes[order[i - apart]], *boxes[order[i]])) return std::minmax(order[i - apart], order[i]);
  return std::nullopt;
}

std::string to_text(const Dims& dims) {
  std::string text;
  for (const int64_t size : dims) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

const Section& Index::section(const std::string& name) const {
  static const Section kEmpty;
  const auto found = sections.find(name);
  return found == sections.end() ? kEmpty : found->second;
}

std::string to_json(const Index& index) {
  json sections = json::object();
  for (const auto& [section, tensors] : index.sections) {
    json& out = sections[section] = json::object();
    for (const auto& [name, tensor] : tensors) {
      json pieces = json::array();
      for (const Piece& piece : tensor.pieces) pieces.push_back(box_json(piece));
      out[name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"pieces", std::move(pieces)}};
    }
  }
  return json{{"format", kFormat}, {"tensors", std::move(sections)}}.dump();
}

Index parse_index(std::string_view text, const std::string& where) {
  const json root = formats::parse_json(text, where, ErrorKind::checkpoint);
  try {
    if (root.at("format") != json(kFormat))  // 1.5 is not 1, nor is true
      throw Error(ErrorKind::checkpoint, where,
                  "has format " + root.at("format").dump() + ", this program reads format 1",
                  "use the version of ditto that wrote it");
    Index index;
    for (const auto& [section, tensors] : root.at("tensors").items())
      for (const auto& [name, value] : tensors.items())
        index.sections[section].emplace(name, parse_tensor(value, where + ": tensor '" + name + "'"));
    return index;
  } catch (const json::exception& error) {
    throw Error(ErrorKind::checkpoint, where, "is not an index of tensors: " + formats::plain_reason(error));
  }
}

void merge(Index& into, const Index& other, const std::string& where) {
  for (const auto& [section, tensors] : other.sections) {
    Section& target = into.sections[section];
    for (const auto& [name, tensor] : tensors) {
      const auto [it, fresh] = target.emplace(name, tensor);
      if (fresh) continue;
      if (it->second.shape != tensor.shape || it->second.dtype != tensor.dtype)
        throw Error(ErrorKind::checkpoint, where,
                    "ranks disagree on tensor '" + name + "': " + it->second.dtype + " " + to_text(it->second.shape) +
                        " and " + tensor.dtype + " " + to_text(tensor.shape));
      it->second.pieces.insert(it->second.pieces.end(), tensor.pieces.begin(), tensor.pieces.end());
    }
  }
}

std::string piece_name(const std::string& name, const Box& box, const Dims& shape) {
  if (box.size == shape) return name;
  std::string range;
  for (size_t d = 0; d < shape.size(); ++d)
    range += (d == 0 ? "" : ",") + std::to_string(box.start[d]) + ":" + std::to_string(box.start[d] + box.size[d]);
  return name + "[" + range + "]";
}

}  // namespace ditto::checkpoint
