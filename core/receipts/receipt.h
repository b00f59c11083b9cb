// Receipts of a run, receipts.jsonl: what each step learned from and made, a line a step, chained by SHA-256. Whoever
// has the recipe can compute the same lines again, on any layout that has the same bits.
//
//   {"step":0,"begins":{"recipe":"…","numerics":"one",…},"weights":"…","average":"…","sha256":"…"}
//   {"step":1,"samples":"…","loss":"…","gradient":"…","norm":"…","weights":"…","average":"…","sha256":"…"}
//
// samples, gradient, weights, average: hashes (tensor_hash.h); loss, norm: the bits of the doubles. An average need not
// stand in every line (record.average_every). "sha256" is that of the line's bytes before `,"sha256"`, behind the
// digits of the line before: it stands for all lines up to here.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ditto {

inline constexpr const char* kReceipts = "receipts.jsonl";
inline constexpr const char* kAverage = "average";  // a part that not every line has

struct Receipt {
  std::int64_t step = 0;  // steps done, this one included
  // In the order in which a step makes them: name and digits. A beginning has weights and average alone.
  std::vector<std::pair<std::string, std::string>> parts;
  bool skipped = false;  // the weights stayed
  // What bits depend on, by name, where a run or a changed run begins; and why the receipts begin here, where they are
  // not a run's first.
  std::optional<std::map<std::string, std::string>> begins;
  std::string why;

  const std::string* part(std::string_view name) const;  // null: it has none
  std::string text() const;                              // of the line, without its SHA-256 and last bracket
};

std::string bits_of(double number);  // 16 hex digits

// The names of the parts that differ, in their order; a part that only one of them has does, but for the average. Of a
// beginning and a step, of what both have.
std::vector<std::string> different_parts(const Receipt& a, const Receipt& b);

// A line of receipts.jsonl, and what it hands on to the next.
struct ReceiptLine {
  std::string text, sha256;
};
ReceiptLine chained(const Receipt& receipt, const std::string& sha256_before);

struct Receipts {
  std::vector<Receipt> lines;
  std::string sha256;  // of the last line; empty: there is none
  std::string broken;  // "line 7, step 6: …": the first that is not what the chain says; empty: none. Lines end there
  std::vector<std::int64_t> ends = {};  // of each line, bytes into the file

  // Null where there is none:
  const Receipt* made(std::int64_t step) const;       // by this step
  const Receipt* state(std::int64_t step) const;      // after this step: its line, or a beginning
  const Receipt* beginning(std::int64_t step) const;  // under which the step after this one ran
};
// Throws Error(data) where the file cannot be read.
Receipts read_receipts(const std::string& path);
Receipts parse_receipts(std::string_view text);

}  // namespace ditto
