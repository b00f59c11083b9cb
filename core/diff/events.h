// What a run has made on its way, tensor by tensor, as prints: what is written by every rank, and read back as one.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/diff/print.h"

namespace ditto::diff {

enum class Pass { forward, backward, update };
const char* name(Pass pass);

// Ops of Pass::update: a parameter's new weights, and its average.
inline constexpr const char *kUpdates = "updates", *kAverages = "averages";

// Names a tensor of a run, on any layout.
struct Key {
  int64_t step = 0;  // from 1
  Pass pass = Pass::forward;
  std::string unit;    // "block 3"
  std::string op;      // "attention", "linear blocks.3.qkv.weight"; or how the unit has it: "reads", "makes", "uses"
  std::string tensor;  // "x", "q", "result"
  friend auto operator<=>(const Key&, const Key&) = default;
};
// "step 1, forward, block 3, attention: q"
std::string to_text(const Key& key);

// Whose it is: one sample by its place in the run's order, a run of them that cannot be told apart, or all (-1, 0).
struct Samples {
  int64_t first = -1, count = 0;
  friend auto operator<=>(const Samples&, const Samples&) = default;
};

// A block of a tensor as a rank has it.
struct Piece {
  int64_t rank = 0;
  std::vector<int64_t> start, size;
  Print print;
};
struct Parts {
  std::vector<int64_t> shape;  // of the whole
  std::vector<Piece> pieces;
};

// How pieces at one place of a tensor go together.
enum class Kind {
  copies,  // they are the same on all ranks
  terms,   // gradients of what ranks have copies of: their sum is the gradient
};

// Where an event stands in its step: passes, then units, then what a unit does.
struct Order {
  int64_t unit = 0, at = 0;
  friend auto operator<=>(const Order&, const Order&) = default;
};

struct Event {
  Order order;
  Kind kind = Kind::copies;
  bool is_of_op = false;  // ranks may have parts of it of which nobody says where they lie: those are not compared
  std::string dtype;
  std::string by;  // what made or used it, for people; may be empty
  std::map<Samples, Parts> parts;
};

class Events {
 public:
  // Enters a piece; one that the rank has entered before, with the same numbers, is entered once.
  void add(const Key& key, const Event& like, const Samples& samples, std::vector<int64_t> shape, Piece piece);
  const std::map<Key, Event>& all() const { return events_; }

  // Throws Error(data). `merge` adds what another rank has written.
  void write(const std::string& path) const;
  void merge(const std::string& path);

 private:
  std::map<Key, Event> events_;
};

}  // namespace ditto::diff
