#include "core/evaluate/table.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include <fmt/format.h>

#include <ditto/text.h>

namespace ditto {

namespace {

namespace fs = std::filesystem;

using Json = nlohmann::ordered_json;
using Row = std::vector<std::string>;

constexpr int kDigitsOfLoss = 6, kDigitsOfStratum = 4;

double middle(size_t stratum, size_t strata) {
  return (static_cast<double>(stratum) + 0.5) / static_cast<double>(strata);
}

// "runs/a" of "runs/a/checkpoints/step_00000600".
std::string run_of(const std::string& checkpoint) {
  const auto folder = fs::path(checkpoint).parent_path();
  return folder.filename() == "checkpoints" && folder.has_parent_path() ? folder.parent_path().string() : checkpoint;
}

std::string text_of(const Spread& spread, int digits) {
  if (!spread.mean) return "-";
  const auto half = spread.half_width();
  return fmt::format("{:.{}f}", *spread.mean, digits) + (half ? fmt::format(" ±{:.{}f}", *half, digits) : "");
}

// Of UTF-8.
size_t letters(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

// The first column begins, the others end, in line.
std::string aligned(const std::vector<Row>& rows) {
  std::vector<size_t> widths(rows.front().size());
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], letters(row[i]));
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string room(widths[i] - letters(row[i]), ' ');
      line += (i > 0 ? "  " : "") + (i > 0 ? room + row[i] : row[i] + room);
    }
    text += line + "\n";
  }
  return text;
}

Json number(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? Json(*value) : Json(nullptr);
}

void put(Json& json, const Spread& spread) {
  const auto half = spread.half_width();
  json["loss"] = number(spread.mean);
  json["standard_error"] = number(spread.error);
  json["interval"] =
      spread.mean && half ? Json{number(*spread.mean - *half), number(*spread.mean + *half)} : Json(nullptr);
}

Json to_json(const Evaluated& row) {
  Json json{{"checkpoint", row.path}, {"run", run_of(row.path)}, {"step", row.step},
            {"learned", row.learned}, {"weights", row.weights},  {"samples", row.samples}};
  put(json, row.loss);
  json["losses"] = Json::object();
  for (const auto& [name, loss] : row.parts) json["losses"][name] = number(loss);
  for (const auto& [name, measure] : row.measures) json["measures"][name] = number(measure);
  json["strata"] = Json::array();
  for (size_t k = 0; k < row.strata.size(); ++k) {
    Json stratum{{"u", middle(k, row.strata.size())}};
    put(stratum, row.strata[k]);
    json["strata"].push_back(std::move(stratum));
  }
  json["seconds"] = row.seconds;
  return json;
}

}  // namespace

std::string to_text(const EvaluationResult& result) {
  std::vector<Row> rows{{"run", "step", "weights", "samples", "loss"}};
  if (result.rows.empty()) return {};
  const auto strata = result.rows.front().strata.size();
  for (size_t k = 0; k < strata; ++k) rows.front().push_back(fmt::format("{:.4f}", middle(k, strata)));
  for (const auto& one : result.rows) {
    rows.push_back({shown(run_of(one.path)), std::to_string(one.step), one.weights, std::to_string(one.samples),
                    text_of(one.loss, kDigitsOfLoss)});
    for (const auto& stratum : one.strata) rows.back().push_back(text_of(stratum, kDigitsOfStratum));
  }
  return aligned(rows) +
         fmt::format(
             "loss, and by the share of training's times that lie below; each held-out sample at {}, noise of seed {}\n"
             "±: 95 % of sets of samples (Student's, of the mean over samples)\n",
             result.each ? "each of them" : "one of them", result.seed);
}

nlohmann::ordered_json to_json(const EvaluationResult& result) {
  Json json{{"held_out", result.held_out},
            {"seed", result.seed},
            {"strata", result.each ? "each" : "one"},
            {"interval", "95 %: Student's, of the mean over samples"},
            {"rows", Json::array()}};
  for (const auto& row : result.rows) json["rows"].push_back(to_json(row));
  return json;
}

}  // namespace ditto
