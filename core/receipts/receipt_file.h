// receipts.jsonl while a run writes it.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "core/receipts/receipt.h"
#include "core/run_folder/json_lines.h"

namespace ditto {

// By the one process that writes the run's folder. Throws Error(data) as JsonLines does.
class ReceiptFile {
 public:
  explicit ReceiptFile(const std::string& folder);

  // Before the step after `beginning.step`, whose state the beginning's weights are. Lines of later steps go. Where the
  // lines that are left lead up to this state the chain goes on, with `beginning` as its next line only where something
  // else is run than before. Where they do not, they are put aside (receipts.before-STEP.jsonl), a new chain begins
  // that says why, and `say` hears of it.
  void begin(Receipt beginning, const std::function<void(const std::string&)>& say);
  void append(const Receipt& receipt);
  void sync() const { file_->sync(); }

 private:
  std::string why_not(const Receipts& before, const Receipt& beginning) const;
  void put_aside(std::int64_t step);
  const std::string folder_;
  std::optional<report::JsonLines> file_;
  std::string sha256_;  // of the last line
};

}  // namespace ditto
