// Which file of a checkpoint holds which rectangle of which global tensor.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
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
