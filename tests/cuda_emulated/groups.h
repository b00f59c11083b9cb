// Groups of rows as tests have them.
#pragma once

#include <memory>

#include "check.h"

namespace check {

// Rows of groups: alike, or as `of_row` says.
struct Grouped {
  Grouped(Index groups, Index rows) : count(groups), rows_(rows) {}
  Grouped(Index groups, std::vector<Index> of_row)
      : count(groups), rows_(static_cast<Index>(of_row.size())), of(of_row) {
    of_row_ = std::make_unique<Array<Index>>(of);
    order_ = std::make_unique<Array<int>>(of.size());
    starts_ = std::make_unique<Array<int>>(static_cast<std::size_t>(groups) + 1);
  }
  int prepare() const {
    return of.empty() ? 0 : ditto_cuda::group_rows(of_row_->at(), rows_, count, order_->at(), starts_->at(), nullptr);
  }
  ditto_cuda::Groups groups() const {
    if (of.empty()) return {count, rows_};
    return {count, rows_, of_row_->at(), order_->at(), starts_->at()};
  }
  std::size_t group(std::size_t row) const {
    return static_cast<std::size_t>(of.empty() ? static_cast<Index>(row) / (rows_ / count) : of[row]);
  }
  std::size_t chunk_numbers(Index width) const { return static_cast<std::size_t>(chunk_rows(groups()) * width); }
  std::size_t rows() const { return static_cast<std::size_t>(rows_); }

  Index count, rows_;
  std::vector<Index> of;
  std::unique_ptr<Array<Index>> of_row_;
  std::unique_ptr<Array<int>> order_, starts_;
};
// Rows of a pack: n of as many groups, one after another or mixed.
inline std::vector<Index> packed(Index groups, Index n, bool mixed) {
  std::vector<Index> of;
  for (Index i = 0; i < n; ++i) of.push_back(mixed ? i * 5 % groups : i * groups / n);
  return of;
}

}  // namespace check
