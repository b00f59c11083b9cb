#include "core/receipts/receipt_file.h"

#include <filesystem>

#include <fmt/format.h>

#include <ditto/error.h>

namespace ditto {

namespace fs = std::filesystem;

ReceiptFile::ReceiptFile(const std::string& folder) : folder_(folder) { file_.emplace(folder_ + "/" + kReceipts); }

// Why these lines do not lead up to the state with which the run begins; empty: they do.
std::string ReceiptFile::why_not(const Receipts& before, const Receipt& beginning) const {
  if (!before.broken.empty()) return "the chain before is broken at " + before.broken;
  if (before.lines.empty()) return "there are no receipts of the steps before";
  const auto& last = before.lines.back();
  if (last.step != beginning.step) return fmt::format("the receipts before end after step {}", last.step);
  if (const auto parts = different_parts(last, beginning); !parts.empty())
    return fmt::format("what was saved has other {} than the receipt of its step", parts.front());
  return {};
}

void ReceiptFile::begin(Receipt beginning, const std::function<void(const std::string&)>& say) {
  const auto path = file_->path();
  file_->cut_back(beginning.step > 0 ? beginning.step : -1);
  const auto before = read_receipts(path);
  if (beginning.step > 0) {
    const auto why = why_not(before, beginning);
    if (why.empty()) {
      sha256_ = before.sha256;
      const auto* ran = before.beginning(beginning.step);
      if (ran && ran->begins == beginning.begins) return;
      return append(beginning);
    }
    say(fmt::format("receipts begin anew after step {}: {}", beginning.step, why));
    beginning.why = why;
    if (!before.lines.empty() || !before.broken.empty()) put_aside(beginning.step);
  }
  append(beginning);
}

void ReceiptFile::put_aside(std::int64_t step) {
  const auto path = file_->path(), aside = fmt::format("{}/receipts.before-{:08}.jsonl", folder_, step);
  std::error_code code;
  fs::rename(path, aside, code);
  if (code) throw Error(ErrorKind::data, aside, "cannot be made: " + code.message());
  file_.emplace(path);
}

void ReceiptFile::append(const Receipt& receipt) {
  auto line = chained(receipt, sha256_);
  file_->append(line.text);
  sha256_ = std::move(line.sha256);
}

}  // namespace ditto
