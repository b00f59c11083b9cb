// Convolutions as products over the unfolded places of maps, which are packed as tiles read them, a panel at a time:
// no map is ever unfolded as a whole. Compiled once for each instruction set.
#pragma once

#include "product.h"

namespace ditto_exact::DITTO_EXACT_NS {

// Unfolded places [at, at + count) of a panel's: of one row of the map's.
struct Stretch {
  Index at, count;
  Index sample, place[3];  // the first one
};

inline Index places_of(const Unfold& u) { return u.places[0] * u.places[1] * u.places[2]; }
inline Index taps_of(const Unfold& u) { return u.taps[0] * u.taps[1] * u.taps[2]; }

// Of all samples' places those from `first` on, `count` of them.
inline Index stretches(const Unfold& u, Index first, Index count, Stretch* list) {
  Index n = 0, done = 0;
  while (done < count) {
    const Index row = (first + done) / u.places[2], column = (first + done) % u.places[2];
    const Index plane = row / u.places[1];
    Stretch& s = list[n++];
    s.at = done, s.count = least(u.places[2] - column, count - done);
    s.sample = plane / u.places[0];
    s.place[0] = plane % u.places[0], s.place[1] = row % u.places[1], s.place[2] = column;
    done += s.count;
  }
  return n;
}

// Where the numbers of a stretch lie for one tap of the first two sides: in [lo, hi) of a line that begins at `from` of
// a channel's numbers. The line has those of all taps of the last side.
struct Line {
  Index from, lo, hi;
};
inline Line line_of(const Unfold& u, const Stretch& s, Index tap0, Index tap1) {
  const Index p0 = s.place[0] * u.step[0] + u.first[0] + tap0 * u.way[0];
  const Index p1 = s.place[1] * u.step[1] + u.first[1] + tap1 * u.way[1];
  if (p0 < 0 || p0 >= u.size[0] || p1 < 0 || p1 >= u.size[1]) return {0, 0, 0};
  const Index start = s.place[2] * u.step[2] + u.first[2] - (u.way[2] < 0 ? u.taps[2] - 1 : 0);
  const Index length = (s.count - 1) * u.step[2] + u.taps[2];
  const Index lo = most(0, 0 - start), hi = least(length, u.size[2] - start);
  return {(p0 * u.size[1] + p1) * u.size[2] + start, lo, most(lo, hi)};
}

// Panels of places: [channel][tap][wide].
template <int NR>
class Places {
 public:
  explicit Places(const MapProduct& p) : p_(p), all_(p.of.samples * places_of(p.of)), taps_(taps_of(p.of)) {
    in_line_ = true;
    for (int side = 0; side < 3; ++side) in_line_ = in_line_ && p.y_size[side] == p.of.places[side];
  }

  void fill(Index panel, float* out) {
    const Unfold& u = p_.of;
    first_ = panel * NR;
    count_ = stretches(u, first_, least(NR, all_ - first_), list_);
    if (taps_ == 0) return;
    prepare(least(NR, all_ - first_));
    const Index channel = u.size[0] * u.size[1] * u.size[2];
    for (const Run* run = p_.order.runs; run < p_.order.runs + p_.order.run_count; ++run)
      for (Index c = run->start / taps_; c < (run->start + run->length) / taps_; ++c) {
        fetch(c, channel);
        out = unfolded(out);
      }
  }

  // y at row m and this panel's first place, where they follow one another there; else null.
  float* there(Index m) const {
    const Index P = places_of(p_.of), n = least(NR, all_ - first_);
    if (!in_line_ || first_ / P != (first_ + n - 1) / P) return nullptr;
    return p_.y + (first_ / P * p_.M + m) * P + first_ % P;
  }
  Index row() const { return places_of(p_.of); }
  void put(Index m, Index rows, const float* c) const {
    const Index all = p_.y_size[0] * p_.y_size[1] * p_.y_size[2], step = p_.y_step[2];
    for (Index i = 0; i < rows; ++i)
      for (const Stretch* s = list_; s < list_ + count_; ++s) {
        Index at[3];
        for (int side = 0; side < 3; ++side) at[side] = p_.y_first[side] + s->place[side] * p_.y_step[side];
        float* const to =
            p_.y + (s->sample * p_.M + m + i) * all + (at[0] * p_.y_size[1] + at[1]) * p_.y_size[2] + at[2];
        const float* const from = c + i * NR + s->at;
        for (Index j = 0; j < s->count; ++j) to[j * step] = from[j];
      }
  }

 private:
  // A channel's lines lie one after another, each as `step` lines of every step-th number: then a tap's numbers follow
  // one another, whatever the step.
  void prepare(Index here) {
    const Unfold& u = p_.of;
    lines_ = u.taps[0] * u.taps[1];
    const Index more = (u.taps[2] - 1) / u.step[2] + 1;
    Index size = 0;
    for (Index i = 0; i < count_; ++i) {
      pitch_[i] = list_[i].count + more, start_[i] = size;
      size += lines_ * u.step[2] * pitch_[i];
    }
    if (here < NR) {  // places that are not there: +0
      list_[count_] = {here, NR - here, -1, {0, 0, 0}};
      pitch_[count_] = NR - here + more, start_[count_] = size;
      size += lines_ * u.step[2] * pitch_[count_];
    }
    all_stretches_ = count_ + (here < NR);
    buffer_ = room(Room::lines, size + W);
    for (Index i = 0; i < size + W; ++i) buffer_[i] = 0;
  }

  void fetch(Index c, Index channel) const {
    const Unfold& u = p_.of;
    for (Index i = 0; i < count_; ++i) {
      const Stretch& s = list_[i];
      const float* const x = u.x + (s.sample * u.channels + c) * channel;
      float* to = buffer_ + start_[i];
      for (Index tap0 = 0; tap0 < u.taps[0]; ++tap0)
        for (Index tap1 = 0; tap1 < u.taps[1]; ++tap1, to += u.step[2] * pitch_[i]) {
          const Line line = line_of(u, s, tap0, tap1);
          if (u.step[2] == 1)
            __builtin_memcpy(to + line.lo, x + line.from + line.lo,
                             sizeof(float) * static_cast<std::size_t>(line.hi - line.lo));
          else
            for (Index k = line.lo; k < line.hi; ++k) to[k % u.step[2] * pitch_[i] + k / u.step[2]] = x[line.from + k];
        }
    }
  }

  // Whole vectors: what one has too much, the next stretch, or tap, is stored over.
  float* unfolded(float* out) const {
    const Unfold& u = p_.of;
    for (Index line = 0; line < lines_; ++line)
      for (Index tap = 0; tap < u.taps[2]; ++tap, out += NR) {
        const Index j = u.way[2] < 0 ? u.taps[2] - 1 - tap : tap;
        for (Index i = 0; i < all_stretches_; ++i) {
          const float* const from =
              buffer_ + start_[i] + (line * u.step[2] + j % u.step[2]) * pitch_[i] + j / u.step[2];
          float* const to = out + list_[i].at;
          for (Index k = 0; k < list_[i].count; k += W) store(to + k, load(from + k));
        }
      }
    return out;
  }

  const MapProduct& p_;
  const Index all_, taps_;
  bool in_line_;
  Index first_ = 0, count_ = 0, all_stretches_ = 0, lines_ = 0;
  Stretch list_[NR + 1];
  Index pitch_[NR + 1], start_[NR + 1];
  float* buffer_ = nullptr;
};

// Panels of channels' taps: [place][wide].
template <int NR>
class Taps {
 public:
  explicit Taps(const MapGrad& p) : p_(p), taps_(taps_of(p.of)), K_(p.of.channels * taps_) {}

  void fill(Index panel, float* out) {
    const Unfold& u = p_.of;
    first_ = panel * NR;
    const Index here = least(NR, K_ - first_), channel = u.size[0] * u.size[1] * u.size[2];
    float* const rows = room(Room::lines, NR * kAtOnce + W);
    for (Index begin = p_.begin; begin < p_.end; begin += kAtOnce) {
      const Index length = least(kAtOnce, p_.end - begin);
      Stretch list[kAtOnce];
      const Index count = stretches(u, begin, length, list);
      for (Index i = 0; i < here; ++i) {
        const Index c = (first_ + i) / taps_, tap = (first_ + i) % taps_, tap2 = tap % u.taps[2];
        const Index j = u.way[2] < 0 ? u.taps[2] - 1 - tap2 : tap2;
        for (const Stretch* s = list; s < list + count; ++s)
          one(u.x + (s->sample * u.channels + c) * channel, *s,
              line_of(u, *s, tap / u.taps[2] / u.taps[1], tap / u.taps[2] % u.taps[1]), j, rows + i * kAtOnce + s->at);
      }
      pack_run({rows, kAtOnce, 1}, here, length, NR, out + (begin - p_.begin) * NR);
    }
  }

  float* there(Index m) const { return p_.sum + m * K_ + first_; }
  Index row() const { return K_; }
  void put(Index, Index, const float*) const {}

 private:
  static constexpr Index kAtOnce = 256;  // places that are unfolded before they are turned

  void one(const float* x, const Stretch& s, const Line& line, Index j, float* to) const {
    const Index step = p_.of.step[2];
    const Index lo = least(s.count, most(0, parts(line.lo - j, step))),
                hi = most(lo, least(s.count, parts(line.hi - j, step)));
    for (Index i = 0; i < lo; ++i) to[i] = 0;
    if (step == 1)
      __builtin_memcpy(to + lo, x + line.from + lo + j, sizeof(float) * static_cast<std::size_t>(hi - lo));
    else
      for (Index i = lo; i < hi; ++i) to[i] = x[line.from + i * step + j];
    for (Index i = hi; i < s.count; ++i) to[i] = 0;
  }

  const MapGrad& p_;
  const Index taps_, K_;
  Index first_ = 0;
};

// C [M, N] = A [M, K] B + bias[m], with B's panels as `Columns` fills them. Of A so much is packed at once that the
// memory it takes is bounded; its panels are read again for each of B's, which stays in a processor's second cache.
struct ByPanels {
  View a;
  Index M, N, K;
  Order order;
  const float* bias;
  bool bf16;
};
template <int MR, int NV, class Terms, class Columns, class P>
void by_panels(const ByPanels& p, const P& of, const Workers& workers) {
  constexpr int NR = NV * W;
  const Index columns = parts(p.N, NR), all = parts(p.M, MR), at_once = most(1, kPacked / most(1, p.K * MR));
  for (Index top = 0; top < all; top += at_once) {
    const Index panels = least(at_once, all - top), rows = least(panels * MR, p.M - top * MR);
    Panels<MR, Terms> a{{p.a.p + top * MR * p.a.rows, p.a.rows, p.a.columns}, rows, p.order, p.K, p.bf16, 0x8000};
    a.packed = room(Room::columns, panels * a.size() + W);
    shared(workers, panels, [&](Index begin, Index end) {
      Panels<MR, Terms> some = a;
      some.packed += begin * a.size();
      if (some.in_lines()) some.lines(begin, end, 0, p.K);
      some.each(begin, end);
      if (some.rounds()) some.round(begin, end);
    });
    const Index groups = columns >= 4 * workers.threads ? 1 : least(panels, workers.threads);
    const Index width = parts(panels, groups);
    shared(workers, columns * groups, [&](Index begin, Index end) {
      Columns of_columns(of);
      Panels<NR, Terms> b{{}, p.N, p.order, p.K, p.bf16, 0, room(Room::rows, p.K * NR + kLine + W)};
      alignas(64) float out[MR * NR];
      for (Index at = begin; at < end; ++at) {
        const Index c = at / groups;
        if (at == begin || at % groups == 0) {
          of_columns.fill(c, b.packed);
          if (b.rounds()) b.round(0, 1);
        }
        for (Index q = at % groups * width; q < least(panels, (at % groups + 1) * width); ++q) {
          const float* const of_a = a.packed + q * a.size();
          const auto add = Terms::fits(of_a + p.K * MR, b.packed + p.K * NR) ? tile<MR, NV, Terms>
                                                                             : tile<MR, NV, typename Terms::Otherwise>;
          const Index m = top * MR + q * MR, here = least(MR, p.M - m);
          float* const there = of_columns.there(m);
          add(of_a, b.packed, p.order.leaves, p.order.leaf_count, there ? there : out,
              there ? of_columns.row() : Index{NR}, here, there ? least(NR, p.N - c * NR) : Index{NR}, nullptr,
              of_a + a.size(), p.bias ? p.bias + m : nullptr);
          if (!there) of_columns.put(m, here, out);
        }
      }
    });
  }
}

template <template <int> class Columns, class Terms, class P>
void by_panels(const ByPanels& p, const P& of, const Workers& all) {
  if (p.M <= 0 || p.N <= 0) return;
  const Workers workers = workers_for(p.M * p.N * p.K, all);
  if (narrower(p.N))
    by_panels<kNarrowRows, kNarrowVectors, Terms, Columns<kNarrowVectors * W>>(p, of, workers);
  else
    by_panels<kRows, kVectors, Terms, Columns<kVectors * W>>(p, of, workers);
}

template <class Terms>
void map_product_of(const MapProduct& p, const Workers& all) {
  by_panels<Places, Terms>({{p.weight, p.of.channels * taps_of(p.of), 1},
                            p.M,
                            p.of.samples * places_of(p.of),
                            p.of.channels * taps_of(p.of),
                            p.order,
                            p.bias,
                            p.bf16},
                           p, all);
}
template <class Terms>
void map_grad_of(const MapGrad& p, const Workers& all) {
  by_panels<Taps, Terms>(
      {{p.g, places_of(p.of), 1}, p.M, p.of.channels * taps_of(p.of), p.end - p.begin, p.order, p.bias, p.bf16}, p,
      all);
}
inline void map_product(const MapProduct& p, const Workers& all) { map_product_of<OneByOne>(p, all); }
inline void map_grad(const MapGrad& p, const Workers& all) { map_grad_of<OneByOne>(p, all); }

}  // namespace ditto_exact::DITTO_EXACT_NS
