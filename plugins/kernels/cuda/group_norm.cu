// GroupNorm: Y. Wu and K. He, 2018 (arXiv:1803.08494). Of each channel of each sample two sums are made in pieces of
// its places, then those of its group's channels together say what becomes of a number.
//
// Legend: B samples, C channels, P places, G groups.
#include "chunks.h"

namespace ditto_cuda {

namespace {

constexpr int kMapThreads = 256;
constexpr Index kPlaces = 2048;  // of a piece, where a channel's places follow one another

struct Room {  // one behind the other
  float *chunks[2], *sums[2], *of_groups[2];
};

template <class T>
DITTO_DEVICE float number(const void* of, Index at) {
  return wide(static_cast<const T*>(of)[at]);
}
DITTO_DEVICE float slope_of_silu(float z) {
  const float s = sigmoid(z);
  return fused(z * (1.0f - s), s, s);
}

// What is known of a channel of a sample.
template <class T>
struct Channel {
  DITTO_DEVICE Channel() {}
  DITTO_DEVICE Channel(const GroupNorm& p, Index sample, Index channel) {
    const Index group = sample * p.groups + channel / (p.channels / p.groups);
    mean = p.mean[2 * group], lacks = p.mean[2 * group + 1], rstd = p.rstd[group];
    k = number<T>(p.weight, channel), l = number<T>(p.bias, channel);
    if (!p.scale) return;
    const Index at = sample * p.channels + channel;
    const float more = 1.0f + number<T>(p.scale, at);
    k = k * more;
    l = fused(l, more, number<T>(p.shift, at));
  }
  DITTO_DEVICE float n(float x) const { return (x - mean - lacks) * rstd; }
  // The gradient of z.
  DITTO_DEVICE float back(float of_n, float grad, bool silu) const {
    return silu ? grad * slope_of_silu(fused(of_n, k, l)) : grad;
  }
  float mean, lacks, rstd, k, l;
};

// What a channel's sums are of: of x how far it is from the channel's first number, and the square of that.
template <class T>
struct Spread {
  DITTO_DEVICE Spread() {}
  DITTO_DEVICE Spread(const GroupNorm& p, Index sample, Index channel)
      : first(number<T>(p.x, sample * p.channels * p.places + channel * (p.channels_last ? 1 : p.places))) {}
  DITTO_DEVICE void add(float x, float, bool, float& sum, float& more) const {
    const float d = x - first;
    sum = sum + d;
    more = fused(d, d, more);
  }
  static constexpr bool kBack = false;
  float first;
};
// Or of z's gradient, and that times n.
template <class T>
struct Slopes {
  DITTO_DEVICE Slopes() {}
  DITTO_DEVICE Slopes(const GroupNorm& p, Index sample, Index channel_) : channel(p, sample, channel_) {}
  DITTO_DEVICE void add(float x, float grad, bool silu, float& sum, float& more) const {
    const float n = channel.n(x), gz = channel.back(n, grad, silu);
    sum = sum + gz;
    more = fused(gz, n, more);
  }
  static constexpr bool kBack = true;
  Channel<T> channel;
};

// Channels last: a block a chunk of places, in a slice of channels. Chunks [chunk, C].
template <class T, int N, template <class> class Of>
DITTO_KERNEL(kSliceThreads)
sums_of_places(GroupNorm p, const void* grad, Groups places, Room room, int lanes) {
  const Seat seat(lanes);
  const Chunk chunk = chunk_at(places, block_x());
  if (chunk.first == chunk.end) return;
  const Index offset = static_cast<Index>(block_y()) * lanes * N, column = offset + seat.lane * N;
  const bool here = column < p.channels;
  float sum[N], more[N];
  fill(0.0f, sum);
  fill(0.0f, more);
  if (here) {
    Of<T> of[N];
#pragma unroll
    for (int i = 0; i < N; ++i) of[i] = Of<T>(p, chunk.group, column + i);
    for (Index place = chunk.first + seat.row; place < chunk.end; place += seat.rows) {
      float x[N], g[N];
      load(static_cast<const T*>(p.x) + place * p.channels + column, x);
      fill(0.0f, g);
      if (Of<T>::kBack) load(static_cast<const T*>(grad) + place * p.channels + column, g);
#pragma unroll
      for (int i = 0; i < N; ++i) of[i].add(x[i], g[i], p.silu, sum[i], more[i]);
    }
  }
  float* const columns = reinterpret_cast<float*>(shared_memory());
  const Index to = static_cast<Index>(block_x()) * p.channels + offset;
  store_columns(sum, seat, p.channels - offset, columns, room.chunks[0] + to);
  store_columns(more, seat, p.channels - offset, columns + thread_count() * N, room.chunks[1] + to);
}

// Channels first: a block a piece of a channel's places. Chunks [piece, B C].
template <class T, int N, template <class> class Of>
DITTO_KERNEL(kMapThreads)
sums_of_channels(GroupNorm p, const void* grad, Index pieces, Room room) {
  const Seat seat(kMapThreads);
  const Index channels = p.samples * p.channels, at = block_x() / pieces, piece = block_x() % pieces;
  const Of<T> of(p, at / p.channels, at % p.channels);
  float sums[2] = {0, 0};
  const Index end = (piece + 1) * kPlaces < p.places ? (piece + 1) * kPlaces : p.places;
  for (Index place = piece * kPlaces + seat.lane * N; place < end; place += kMapThreads * N) {
    float x[N], g[N];
    load(static_cast<const T*>(p.x) + at * p.places + place, x);
    fill(0.0f, g);
    if (Of<T>::kBack) load(static_cast<const T*>(grad) + at * p.places + place, g);
#pragma unroll
    for (int i = 0; i < N; ++i) of.add(x[i], g[i], p.silu, sums[0], sums[1]);
  }
  row_sums(sums, seat, reinterpret_cast<float*>(shared_memory()));
  if (seat.lane > 0) return;
  room.chunks[0][piece * channels + at] = sums[0];
  room.chunks[1][piece * channels + at] = sums[1];
}

// A thread a group of a sample. In fp64: they are few.
template <class T>
DITTO_KERNEL(kMapThreads)
group_means(GroupNorm p, Room room) {
  const Index at = static_cast<Index>(block_x()) * thread_count() + thread_at();
  if (at >= p.samples * p.groups) return;
  const Index of_group = p.channels / p.groups, sample = at / p.groups, first = at % p.groups * of_group;
  const auto places = static_cast<double>(p.places), channels = static_cast<double>(of_group);
  double mean = 0, squares = 0;
  const auto mean_of = [&](Index c) {
    return Spread<T>(p, sample, c).first + quotient(static_cast<double>(room.sums[0][sample * p.channels + c]), places);
  };
  for (Index c = first; c < first + of_group; ++c) mean = mean + quotient(mean_of(c), channels);
  for (Index c = first; c < first + of_group; ++c) {
    const double sum = room.sums[0][sample * p.channels + c], off = mean_of(c) - mean;
    squares = squares + (room.sums[1][sample * p.channels + c] - quotient(sum * sum, places)) + places * off * off;
  }
  const auto rounded = static_cast<float>(mean);
  p.mean[2 * at] = rounded;
  p.mean[2 * at + 1] = static_cast<float>(mean - rounded);
  p.rstd[at] = static_cast<float>(quotient(1.0, root(quotient(squares, places * channels) + p.eps)));
}

// Of a group, the means of k gz and of k gz n.
template <class T>
DITTO_KERNEL(kMapThreads)
group_slopes(GroupNorm p, Room room) {
  const Index at = static_cast<Index>(block_x()) * thread_count() + thread_at();
  if (at >= p.samples * p.groups) return;
  const Index of_group = p.channels / p.groups, sample = at / p.groups, first = at % p.groups * of_group;
  double sums[2] = {0, 0};
  for (Index c = first; c < first + of_group; ++c) {
    const double k = Channel<T>(p, sample, c).k;
    for (int i = 0; i < 2; ++i) sums[i] = sums[i] + k * room.sums[i][sample * p.channels + c];
  }
  for (int i = 0; i < 2; ++i)
    room.of_groups[i][at] = static_cast<float>(quotient(sums[i], static_cast<double>(of_group * p.places)));
}

// A thread a channel: samples in order.
template <class T>
DITTO_KERNEL(kMapThreads)
channel_slopes(GroupNorm p, GroupNormBack back, Room room) {
  const Index c = static_cast<Index>(block_x()) * thread_count() + thread_at();
  if (c >= p.channels) return;
  float dweight = 0, dbias = 0;
  for (Index sample = 0; sample < p.samples; ++sample) {
    const Index at = sample * p.channels + c;
    const float more = p.scale ? 1.0f + number<T>(p.scale, at) : 1.0f, S = room.sums[0][at], N = room.sums[1][at];
    dbias = fused(more, S, dbias);
    dweight = fused(more, N, dweight);
    if (!p.scale) continue;
    put(S, static_cast<T*>(back.dshift)[at]);
    put(fused(number<T>(p.weight, c), N, number<T>(p.bias, c) * S), static_cast<T*>(back.dscale)[at]);
  }
  back.dweight[c] = dweight;
  back.dbias[c] = dbias;
}

// Number by number: y, or where a gradient is given dx = rstd (k gz - mean(k gz) - n mean(k gz n)).
template <class T, int N>
DITTO_KERNEL(kMapThreads)
normalise(GroupNorm p, const void* grad, void* to, Room room) {
  const Index at = (static_cast<Index>(block_x()) * thread_count() + thread_at()) * N;
  if (at >= p.samples * p.channels * p.places) return;
  const Index of_sample = p.channels * p.places, sample = at / of_sample;
  const Index first = p.channels_last ? at % p.channels : at % of_sample / p.places;
  float x[N], g[N];
  load(static_cast<const T*>(p.x) + at, x);
  fill(0.0f, g);
  if (grad) load(static_cast<const T*>(grad) + at, g);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const Index c = p.channels_last ? first + i : first;
    const Channel<T> channel(p, sample, c);
    const float n = channel.n(x[i]);
    if (grad) {
      const Index group = sample * p.groups + c / (p.channels / p.groups);
      const float h = fused(channel.k, channel.back(n, g[i], p.silu), -room.of_groups[0][group]);
      x[i] = fused(-n, room.of_groups[1][group], h) * channel.rstd;
    } else {
      const float z = fused(n, channel.k, channel.l);
      x[i] = p.silu ? quotient(z, 1.0f + exponential(-z)) : z;
    }
  }
  store(x, static_cast<T*>(to) + at);
}

Groups of_places(const GroupNorm& p) { return {p.samples, p.samples * p.places}; }
Index pieces_of_map(const GroupNorm& p) { return parts(p.places, kPlaces); }
Groups of_pieces(const GroupNorm& p) { return {1, pieces_of_map(p) * kChunk}; }
Index numbers_of_chunks(const GroupNorm& p) {
  return p.channels_last ? chunk_rows(of_places(p)) * p.channels : chunk_rows(of_pieces(p)) * p.samples * p.channels;
}
Room rooms(const GroupNorm& p, float* room) {
  const Index chunks = (numbers_of_chunks(p) + 3) / 4 * 4, sums = p.samples * p.channels, groups = p.samples * p.groups;
  float *const behind = room + 2 * chunks, *const last = behind + 2 * sums;
  return {{room, room + chunks}, {behind, behind + sums}, {last, last + groups}};
}

// Both sums of each channel.
template <class T, int N, template <class> class Of>
Status sums(const GroupNorm& p, const void* grad, const Room& room, Stream stream) {
  Status status;
  if (p.channels_last) {
    const auto [walk, slices] = slices_of(p.channels, N);
    status = launch(sums_of_places<T, N, Of>, {chunk_rows(of_places(p)), slices}, walk.threads, column_room(walk, N, 2),
                    stream, p, grad, of_places(p), room, walk.lanes);
  } else {
    const Index pieces = pieces_of_map(p);
    status = launch(sums_of_channels<T, N, Of>, {pieces * p.samples * p.channels}, kMapThreads, sum_room(2), stream, p,
                    grad, pieces, room);
  }
  const Groups groups = p.channels_last ? of_places(p) : of_pieces(p);
  const Index width = p.channels_last ? p.channels : p.samples * p.channels;
  for (int i = 0; i < 2 && !status; ++i)
    status = add_chunks(room.chunks[i], groups, width, room.sums[i], Storage::fp32, stream);
  return status;
}

template <class T, int N>
Status forward(const GroupNorm& p, void* y, const Room& room, Stream stream) {
  if (const Status status = sums<T, N, Spread>(p, nullptr, room, stream)) return status;
  if (const Status status =
          launch(group_means<T>, {parts(p.samples * p.groups, kMapThreads)}, kMapThreads, 0, stream, p, room))
    return status;
  const Index packs = p.samples * p.channels * p.places / N;
  return launch(normalise<T, N>, {parts(packs, kMapThreads)}, kMapThreads, 0, stream, p, nullptr, y, room);
}

template <class T, int N>
Status backward(const GroupNorm& p, const GroupNormBack& back, const Room& room, Stream stream) {
  if (const Status status = sums<T, N, Slopes>(p, back.grad, room, stream)) return status;
  if (const Status status =
          launch(group_slopes<T>, {parts(p.samples * p.groups, kMapThreads)}, kMapThreads, 0, stream, p, room))
    return status;
  if (const Status status =
          launch(channel_slopes<T>, {parts(p.channels, kMapThreads)}, kMapThreads, 0, stream, p, back, room))
    return status;
  const Index packs = p.samples * p.channels * p.places / N;
  return launch(normalise<T, N>, {parts(packs, kMapThreads)}, kMapThreads, 0, stream, p, back.grad, back.dx, room);
}

}  // namespace

Index group_norm_room(const GroupNorm& p) {
  return 2 * ((numbers_of_chunks(p) + 3) / 4 * 4 + p.samples * (p.channels + p.groups));
}

Status group_norm(const GroupNorm& p, void* y, float* room, Stream stream) {
  return by_storage(p.storage, [&](auto x) {
    using T = decltype(x);
    constexpr int N = 16 / sizeof(T);
    const Index side_by_side = p.channels_last ? p.channels : p.places;
    return in_packs<T>(side_by_side, p.x, y, room) ? forward<T, N>(p, y, rooms(p, room), stream)
                                                   : forward<T, 1>(p, y, rooms(p, room), stream);
  });
}

Status group_norm_back(const GroupNorm& p, const GroupNormBack& back, float* room, Stream stream) {
  return by_storage(p.storage, [&](auto x) {
    using T = decltype(x);
    constexpr int N = 16 / sizeof(T);
    const Index side_by_side = p.channels_last ? p.channels : p.places;
    return in_packs<T>(side_by_side, p.x, back.grad, back.dx, room) ? backward<T, N>(p, back, rooms(p, room), stream)
                                                                    : backward<T, 1>(p, back, rooms(p, room), stream);
  });
}

}  // namespace ditto_cuda
