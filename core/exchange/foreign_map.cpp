#include "core/exchange/foreign_map.h"

#include <algorithm>
#include <set>

namespace ditto::checkpoint {

namespace {

// Numbers of one row, and rows of each of theirs.
struct RowSizes {
  int64_t row, each;
};
RowSizes row_sizes(const ForeignTensor& tensor, const Dims& ours) {
  const int64_t row = numbers(ours) / std::max<int64_t>(1, ours.at(0));
  return {row, row == 0 ? 0 : numbers(their_shape(tensor, ours)) / row};
}

// Which rows of theirs ours have taken, by name. Those that come as they come are taken as one.
class TakenRows {
 public:
  explicit TakenRows(const std::string& where) : where_(where) {}

  void take(const ForeignTensor& tensor, const Dims& ours) {
    if (tensor.rows.empty()) {
      for (const auto& name : tensor.theirs)
        if (!whole_.insert(name).second || left_.count(name)) refuse(name);
      return;
    }
    const auto [row, each] = row_sizes(tensor, ours);
    for (const auto& name : tensor.theirs) {
      if (whole_.count(name)) refuse(name);
      if (const auto [rows, is_new] = left_.try_emplace(name); is_new)
        rows->second.resize(static_cast<size_t>(each), 1);
      if (left_.at(name).size() != static_cast<size_t>(each)) refuse(name);
    }
    for (const int64_t from : tensor.rows) {
      auto& rows = left_.at(tensor.theirs[static_cast<size_t>(from / each)]);
      if (!rows[static_cast<size_t>(from % each)]) refuse(tensor.theirs[static_cast<size_t>(from / each)]);
      rows[static_cast<size_t>(from % each)] = 0;
    }
  }
  void finish() const {
    for (const auto& [name, rows] : left_)
      if (std::any_of(rows.begin(), rows.end(), [](char row) { return row != 0; })) refuse(name);
  }

 private:
  [[noreturn]] void refuse(const std::string& name) const {
    throw Error(ErrorKind::plugin, where_,
                "the model's name map has rows of '" + name + "' that are of none of ours, or of two",
                "correct its foreign()");
  }
  const std::string& where_;
  std::set<std::string> whole_;
  std::map<std::string, std::vector<char>> left_;  // 1: of none so far
};

}  // namespace

Entries entries_of(const Layout& layout) {
  Entries entries;
  for (const auto& entry : layout.entries) entries[entry.name] = &entry;
  return entries;
}

Dims their_shape(const ForeignTensor& tensor, const Dims& ours) {
  Dims shape = tensor.shape.empty() ? ours : tensor.shape;
  if (tensor.shape.empty() && !shape.empty()) shape[0] /= static_cast<int64_t>(tensor.theirs.size());
  return shape;
}

Dims stacked_shape(const ForeignTensor& tensor, const Dims& ours) {
  if (tensor.rows.empty()) return ours;
  Dims shape = ours;
  shape[0] = row_sizes(tensor, ours).each * static_cast<int64_t>(tensor.theirs.size());
  return shape;
}

void require_map(const ForeignFormat& format, const Entries& parameters, const std::string& where) {
  std::set<std::string> mapped;
  TakenRows taken(where);
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorKind::plugin, where, "the model's name map " + what, "correct its foreign()");
  };
  for (const ForeignTensor& tensor : format.tensors) {
    const auto found = parameters.find(tensor.ours);
    if (found == parameters.end()) fail("names '" + tensor.ours + "', which is no parameter");
    if (tensor.theirs.empty() || !mapped.insert(tensor.ours).second)
      fail("maps '" + tensor.ours + "' to nothing, or twice");
    const Dims& ours = found->second->full_shape;
    const auto parts = static_cast<int64_t>(tensor.theirs.size());
    const int64_t theirs = numbers(their_shape(tensor, ours)) * parts;
    bool fits = tensor.rows.empty() && theirs == numbers(ours);
    if (!tensor.rows.empty() && !ours.empty() && numbers(ours) > 0) {
      const auto [row, each] = row_sizes(tensor, ours);
      fits = each * row * parts == theirs && static_cast<int64_t>(tensor.rows.size()) == ours[0] &&
             std::all_of(tensor.rows.begin(), tensor.rows.end(),
                         [&, all = each * parts](int64_t from) { return from >= 0 && from < all; });
    }
    if (!fits)
      fail("gives '" + tensor.theirs.front() + "' a shape or rows that do not make '" + tensor.ours + "' of " +
           to_text(ours));
    taken.take(tensor, ours);
  }
  for (const auto& item : parameters)
    if (!mapped.count(item.first)) fail("lacks '" + item.first + "'");
  taken.finish();
}

NamedTensors to_theirs(const ForeignFormat& format, const NamedTensors& ours) {
  NamedTensors out;
  for (const ForeignTensor& tensor : format.tensors) {
    const auto& from = ours.at(tensor.ours);
    const Dims full = from.sizes().vec(), shape = their_shape(tensor, full);
    const auto parts = static_cast<int64_t>(tensor.theirs.size());
    if (tensor.rows.empty()) {
      const auto pieces = from.reshape(-1).chunk(parts);
      for (size_t i = 0; i < pieces.size(); ++i) out[tensor.theirs[i]] = pieces[i].reshape(shape);
      continue;
    }
    const auto [row, each] = row_sizes(tensor, full);
    const auto at = torch::tensor(tensor.rows, torch::kLong);
    const auto part_of = at.div(each, "floor");
    const auto flat = from.reshape({full[0], row});
    for (int64_t i = 0; i < parts; ++i) {
      auto& into = out[tensor.theirs[static_cast<size_t>(i)]];
      if (!into.defined()) into = torch::empty(shape, from.options());
      const auto mine = part_of.eq(i).nonzero().flatten();
      into.view({each, row}).index_copy_(0, at.index_select(0, mine) - i * each, flat.index_select(0, mine));
    }
  }
  for (const auto& [copy, of] : format.copies) {
    if (!out.count(of))
      throw Error(ErrorKind::plugin, "the model's name map", "copies '" + of + "', which it does not write",
                  "correct its foreign()");
    out[copy] = out.at(of);
  }
  for (const auto& [name, value] : format.constants) out[name] = value;
  return out;
}

}  // namespace ditto::checkpoint
