// Which file of a checkpoint holds which rectangle of which global tensor.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ditto::checkpoint {

using Dims = std::vector<int64_t>;

// A block of numbers of a global tensor.
struct Box {
  Dims start, size;
  friend bool operator==(const Box&, const Box&) = default;
};
std::optional<Box> intersection(const Box& a, const Box& b);  // none: they share no number
int64_t numbers(const Dims& size);
std::string to_text(const Dims& dims);  // "[2, 3]"

// Whether boxes fill another one, each of its numbers once. Told by sums over the boxes, however they lie: in time that
// grows as their number does, where comparing each with each other takes hours for a file that is made for it.
class Tiling {
 public:
  explicit Tiling(const Box& whole);
  void add(const Box& part);  // inside of the whole
  bool is_filled() const;
  int64_t held() const;  // numbers of all parts: what two of them hold counts twice; at most INT64_MAX

 private:
  const int64_t numbers_;
  const uint64_t weight_;
  unsigned __int128 held_ = 0;
  uint64_t sum_ = 0;
};
// Two of them that share a number, by their places. Of more than some thousand only those that lie side by side in
// order are compared: none does not say that there are none.
std::optional<std::pair<size_t, size_t>> two_that_meet(const std::vector<const Box*>& boxes);

struct Piece {
  std::string file, tensor;  // the tensor's name in that file
  Box box;
};

struct IndexedTensor {
  std::string dtype;  // safetensors' name: "F32"
  Dims shape;         // of the global tensor
  std::vector<Piece> pieces;
};

// The three kinds of tensors; also the beginnings of their files' names.
inline constexpr const char* kModel = "model";
inline constexpr const char* kEma = "ema";
inline constexpr const char* kOptimizer = "optimizer";
inline constexpr std::array<const char*, 3> kSections{kModel, kEma, kOptimizer};

using Section = std::map<std::string, IndexedTensor>;
struct Index {
  std::map<std::string, Section> sections;
  const Section& section(const std::string& name) const;  // empty where there is none
};

std::string to_json(const Index& index);
// Throws Error(checkpoint) naming `where` for anything that is not an index: boxes outside of their tensors included.
Index parse_index(std::string_view text, const std::string& where);
// Adds another rank's pieces. Throws Error(checkpoint) if the two disagree on a tensor.
void merge(Index& into, const Index& other, const std::string& where);

// The name of a piece in its file: the tensor's own for all of it, "NAME[0:8,16:32]" for a part.
std::string piece_name(const std::string& name, const Box& box, const Dims& shape);

}  // namespace ditto::checkpoint
