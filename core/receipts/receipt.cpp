#include "core/receipts/receipt.h"

#include <algorithm>
#include <bit>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ditto/error.h>

#include "core/formats/file.h"
#include "core/formats/sha256.h"
#include "core/formats/text/json.h"

namespace ditto {

namespace {

using ReceiptJson = nlohmann::ordered_json;

constexpr std::string_view kBeforeSha = ",\"sha256\":\"", kAfterSha = "\"}";
constexpr std::size_t kShaDigits = 64;

Receipt receipt_of(std::string_view line) {
  formats::parse_json(line, kReceipts, ErrorKind::data);  // strictly: no key twice
  const auto json = ReceiptJson::parse(line);
  Receipt receipt;
  receipt.step = json.at("step").get<std::int64_t>();
  for (const auto& [key, value] : json.items()) {
    if (key == "begins")
      receipt.begins = value.get<std::map<std::string, std::string>>();
    else if (key == "why")
      receipt.why = value.get<std::string>();
    else if (key == "skipped")
      receipt.skipped = value.get<bool>();
    else if (key != "step" && key != "sha256")
      receipt.parts.emplace_back(key, value.get<std::string>());
  }
  return receipt;
}

template <class Test>
const Receipt* last_of(const std::vector<Receipt>& lines, const Test& test) {
  const auto found = std::find_if(lines.rbegin(), lines.rend(), test);
  return found == lines.rend() ? nullptr : &*found;
}

// What is wrong with the line, in its place; empty: nothing.
std::string fault_of(std::string_view line, const Receipts& before, Receipt& into) {
  const auto sha_at = line.rfind(kBeforeSha);
  if (sha_at == line.npos || line.size() != sha_at + kBeforeSha.size() + kShaDigits + kAfterSha.size() ||
      !line.ends_with(kAfterSha))
    return "it has no SHA-256 at its end";
  try {
    into = receipt_of(line);
  } catch (const std::exception& error) {  // Error, and what the JSON library throws
    return "it is no receipt: " + formats::plain_reason(error);
  }
  const auto said = line.substr(sha_at + kBeforeSha.size(), kShaDigits);
  const auto found = formats::sha256(before.sha256 + std::string(line.substr(0, sha_at)));
  if (found != said) return fmt::format("its SHA-256, of it and the line before, is {}, and it says {}", found, said);
  if (before.lines.empty()) return into.begins ? "" : "it says nothing of the run, as the first line does";
  const auto last = before.lines.back().step, expected = into.begins ? last : last + 1;
  if (into.step != expected) return fmt::format("it follows step {}", last);
  return {};
}

}  // namespace

const std::string* Receipt::part(std::string_view name) const {
  for (const auto& [key, digits] : parts)
    if (key == name) return &digits;
  return nullptr;
}

std::string Receipt::text() const {
  ReceiptJson json;
  json["step"] = step;
  if (begins) json["begins"] = *begins;
  if (!why.empty()) json["why"] = why;
  if (skipped) json["skipped"] = true;
  for (const auto& [key, digits] : parts) json[key] = digits;
  auto text = formats::ascii_json(json, -1);
  text.pop_back();
  return text;
}

std::string bits_of(double number) { return fmt::format("{:016x}", std::bit_cast<std::uint64_t>(number)); }

std::vector<std::string> different_parts(const Receipt& a, const Receipt& b) {
  std::vector<std::string> names;
  const bool both_steps = !a.begins && !b.begins;
  const auto has_to_be_there = [&](const std::string& name) { return both_steps && name != kAverage; };
  for (const auto& [name, digits] : a.parts) {
    const auto* other = b.part(name);
    if (other ? *other != digits : has_to_be_there(name)) names.push_back(name);
  }
  for (const auto& [name, digits] : b.parts)
    if (has_to_be_there(name) && !a.part(name)) names.push_back(name);
  if (both_steps && a.skipped != b.skipped) names.emplace_back("whether it was skipped");
  return names;
}

ReceiptLine chained(const Receipt& receipt, const std::string& sha256_before) {
  const auto text = receipt.text();
  const auto digits = formats::sha256(sha256_before + text);
  return {text + std::string(kBeforeSha) + digits + std::string(kAfterSha), digits};
}

const Receipt* Receipts::made(std::int64_t step) const {
  return last_of(lines, [&](const Receipt& line) { return line.step == step && !line.begins; });
}

const Receipt* Receipts::state(std::int64_t step) const {
  return last_of(lines, [&](const Receipt& line) { return line.step == step; });
}

const Receipt* Receipts::beginning(std::int64_t step) const {
  return last_of(lines, [&](const Receipt& line) { return line.step <= step && line.begins; });
}

Receipts parse_receipts(std::string_view text) {
  Receipts receipts;
  for (std::size_t at = 0, number = 1; at < text.size(); ++number) {
    const auto end = text.find('\n', at);
    const auto line = text.substr(at, end == text.npos ? end : end - at);
    Receipt receipt;
    auto fault = end == text.npos ? "it is cut off" : fault_of(line, receipts, receipt);
    if (!fault.empty()) {
      receipts.broken = fmt::format("line {}: {}", number, fault);
      if (!receipts.lines.empty())
        receipts.broken = fmt::format("line {}, after step {}: {}", number, receipts.lines.back().step, fault);
      return receipts;
    }
    receipts.sha256 = line.substr(line.size() - kAfterSha.size() - kShaDigits, kShaDigits);
    receipts.lines.push_back(std::move(receipt));
    at = end + 1;
    receipts.ends.push_back(static_cast<std::int64_t>(at));
  }
  return receipts;
}

Receipts read_receipts(const std::string& path) { return parse_receipts(formats::read_file(path, ErrorKind::data)); }

}  // namespace ditto
