// What a dry run found, for people and for programs.
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/plan/dry_run.h"

namespace ditto {

namespace {

constexpr std::array kShares{"parameters", "copies", "gradients",   kNodes, "optimizer",
                             "ema",        "frozen", "activations", kAhead, kEncoding};

// Those that not every run has.
bool is_rare(const std::string& share) { return share == kNodes || share == kAhead || share == kEncoding; }

std::string table_line(const RankCost& cost, const char* what) {
  auto text = fmt::format("rank {}{}: {} of the learned numbers\n", cost.rank, what, cost.parameters);
  for (const char* share : kShares) {
    const auto at = cost.bytes.find(share);
    if (at != cost.bytes.end() && (at->second > 0 || share != std::string("frozen")))
      text += fmt::format("  {:12} {:>16} bytes\n", share, at->second);
    if (at == cost.bytes.end() && !is_rare(share)) text += fmt::format("  {:12} {:>16}\n", share, "not known");
  }
  return text +
         fmt::format("  {:12} {:>16} bytes, {:.2f} GB\n", "all", cost.total(), static_cast<double>(cost.total()) / 1e9);
}

}  // namespace

int64_t RankCost::total() const {
  int64_t sum = 0;
  for (const auto& [share, count] : bytes) sum += count;
  return sum;
}

std::string to_text(const DryRun& run) {
  auto text =
      fmt::format("{} with {} learned numbers, {}, on {} rank{}: batch {}, micro-batches of {}", run.model,
                  run.parameters, run.precision, run.ranks, run.ranks == 1 ? "" : "s", run.batch, run.micro_batch);
  text += run.tokens_per_sample > 0 ? fmt::format(", {} tokens a sample", run.tokens_per_sample) : "";
  text += run.size.empty() ? "" : fmt::format(", as if all were of {}, the largest size", run.size);
  text += run.text_length > 0 ? fmt::format(", texts of {}\n", run.text_length) : "\n";
  for (const auto& [section, parameters] : run.frozen)
    text += fmt::format("{} with {} frozen numbers\n", section, parameters);
  if (!run.unknown.empty()) text += "not known: " + run.unknown + "\n";
  if (!run.unknown_encoding.empty())
    text += "what encoders take while they compute is not known, and not counted: " + run.unknown_encoding + "\n";
  text += table_line(run.first, run.first.rank == run.largest.rank ? ", no other holds more" : "");
  if (run.first.rank != run.largest.rank) text += table_line(run.largest, ", no other holds more");
  if (run.flops.empty()) return text;
  text += fmt::format("a step, forward and backward: {:.4g} floating-point operations\n", total(run.flops));
  for (const auto& [unit, parts] : run.flops)
    for (const auto& [part, operations] : parts)
      text += fmt::format("  {:10} {:10} {:>11.4g}  {:5.1f} %\n", unit, part, operations,
                          100 * operations / total(run.flops));
  if (run.audit > 0)
    text += fmt::format("audits: {:.4g} more a step, in the mean of many\n", run.audit * total(run.flops));
  return text;
}

nlohmann::ordered_json to_json(const DryRun& run) {
  const auto of = [](const RankCost& cost) {
    nlohmann::ordered_json json;
    json["rank"] = cost.rank;
    json["parameters"] = cost.parameters;
    json["bytes"] = cost.bytes;
    json["total"] = cost.total();
    return json;
  };
  nlohmann::ordered_json json{{"model", run.model},
                              {"precision", run.precision},
                              {"ranks", run.ranks},
                              {"parameters", run.parameters},
                              {"frozen_parameters", run.frozen},
                              {"batch", run.batch},
                              {"micro_batch", run.micro_batch},
                              {"tokens_per_sample", run.tokens_per_sample},
                              {"size", run.size},
                              {"text_length", run.text_length},
                              {"flops_per_step", nullptr},
                              {"flops", nlohmann::ordered_json(run.flops)},
                              {"first", of(run.first)},
                              {"largest", of(run.largest)}};
  if (!run.flops.empty()) json["flops_per_step"] = total(run.flops);
  if (run.audit > 0) json["audit"] = run.audit;
  if (!run.unknown.empty()) json["unknown"] = run.unknown;
  if (!run.unknown_encoding.empty()) json["unknown_encoding"] = run.unknown_encoding;
  return json;
}

}  // namespace ditto
