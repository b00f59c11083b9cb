// Places that stand several times in another row, and their sums on the way back. A place is as many numbers, `inner`,
// as follow one another: one, or a place's channels.
#pragma once

#include <cstddef>

#include "storage.h"

namespace ditto_cpu {

struct PlacesOfRow {
  size_t places, inner, times;  // of the row in which each place stands once
  Storage storage;
  size_t numbers() const { return places * inner * times; }  // of the other
};

void repeat(const PlacesOfRow& row, const void* x, void* y);
// Of `rows` rows, one behind the other: of each place first those in one column, then the columns, in their order.
// `room`: row.numbers().
void add_repeats(const PlacesOfRow& row, size_t rows, const void* x, float* room, void* y);

}  // namespace ditto_cpu
