// A convolution's window as unfolded places: of its map forward, and of its output's gradient back.
#pragma once

#include <vector>

#include "kernels.h"

namespace ditto_exact {

// Of three sides each: a map's places, the kernel's, the step from output to output, zeros before the first place, and
// the outputs. One of a transposed convolution is of the map that comes out, and its "outputs" are what it is given.
struct Window {
  Index size[3], kernel[3], stride[3], before[3], outputs[3];
  Index taps() const { return kernel[0] * kernel[1] * kernel[2]; }
};

inline Unfold unfolded(const Window& w, const float* x, Index samples, Index channels) {
  Unfold u{x, samples, channels, {}, {}, {}, {}, {}, {}};
  for (int side = 0; side < 3; ++side) {
    u.size[side] = w.size[side], u.places[side] = w.outputs[side];
    u.taps[side] = w.kernel[side], u.step[side] = w.stride[side];
    u.first[side] = -w.before[side], u.way[side] = 1;
  }
  return u;
}

// Every stride-th place of a map sees the same taps of the kernel, and all others fall between outputs: of a gradient,
// a phase's places are those of one convolution of the outputs.
struct Phase {
  Unfold of;
  Index first[3], step[3];  // its places
  std::vector<Index> taps;  // of the kernel's
};
inline std::vector<Phase> phases(const Window& w, const float* outputs, Index samples, Index channels) {
  std::vector<Phase> list;
  Index all = 1, each[3];
  for (int side = 0; side < 3; ++side) all *= each[side] = least(w.stride[side], w.size[side]);
  for (Index phase = 0; phase < all; ++phase) {
    const Index at[] = {phase / each[2] / each[1], phase / each[2] % each[1], phase % each[2]};
    Phase p{{outputs, samples, channels, {}, {}, {}, {}, {}, {}}, {}, {}, {}};
    Index tap[3];
    for (int side = 0; side < 3; ++side) {
      const Index stride = w.stride[side];
      tap[side] = (at[side] + w.before[side]) % stride;
      p.of.size[side] = w.outputs[side], p.of.places[side] = parts(w.size[side] - at[side], stride);
      p.of.taps[side] = most(0, parts(w.kernel[side] - tap[side], stride));
      p.of.step[side] = 1, p.of.first[side] = (at[side] + w.before[side]) / stride, p.of.way[side] = -1;
      p.first[side] = at[side], p.step[side] = stride;
    }
    for (Index i = 0; i < p.of.taps[0]; ++i)
      for (Index j = 0; j < p.of.taps[1]; ++j)
        for (Index k = 0; k < p.of.taps[2]; ++k)
          p.taps.push_back(((tap[0] + i * w.stride[0]) * w.kernel[1] + tap[1] + j * w.stride[1]) * w.kernel[2] +
                           tap[2] + k * w.stride[2]);
    list.push_back(p);
  }
  return list;
}

}  // namespace ditto_exact
