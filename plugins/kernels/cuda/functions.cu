// Functions of each number, and softmax along rows. GELU: D. Hendrycks and K. Gimpel, 2016 (arXiv:1606.08415).
#include "walk.h"

namespace ditto_cuda {

namespace {

constexpr int kFunctionThreads = 256;

struct Silu {
  static DITTO_DEVICE float of(float x) { return quotient(x, 1.0f + exponential(-x)); }
  static DITTO_DEVICE float slope(float x) {
    const float s = sigmoid(x);
    return fused(x * (1.0f - s), s, s);
  }
};

// x / (1 + e^(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3).
struct GeluTanh {
  static constexpr float kRoot2OverPi = 0.7978845608f;
  static DITTO_DEVICE float gate(float x) {
    const float u = x * fused(x * x, kRoot2OverPi * 0.044715f, kRoot2OverPi);
    return quotient(1.0f, 1.0f + exponential(u * -2.0f));
  }
  static DITTO_DEVICE float of(float x) { return x * gate(x); }
  static DITTO_DEVICE float slope(float x) {
    const float s = gate(x), du = fused(x * x, 3 * kRoot2OverPi * 0.044715f, kRoot2OverPi);
    return fused(x * s * (1.0f - s), 2.0f * du, s);
  }
};

// By the normal distribution's P(X < x): e^(-a^2/2) g(a) for x = -a, and 1 less that for x = a. g, the Mills ratio over
// sqrt(2 pi), is t = 1 / (1 + 0.35 a) times a polynomial in t, as plugins/kernels/exact has it.
struct GeluErf {
  struct Normal {
    float below, e;  // P(X < x); e^(-x^2/2)
  };
  static DITTO_DEVICE Normal normal(float x) {
    const float size = x < 0.0f ? 0.0f - x : x, a = size > 16.0f ? 16.0f : size;
    const float square = a * a, rest = fused(a, a, 0.0f - square);  // both together are the square
    float e = exponential(square * -0.5f);
    e = fused(e, rest * -0.5f, e);
    const float t = quotient(1.0f, fused(a, 0.35f, 1.0f));
    float p = -0.029165268f;
    p = fused(p, t, 0.14406748f);
    p = fused(p, t, -0.255916f);
    p = fused(p, t, 0.15940946f);
    p = fused(p, t, -0.02327554f);
    p = fused(p, t, 0.10557991f);
    p = fused(p, t, 0.11981417f);
    p = fused(p, t, 0.13986452f);
    p = fused(p, t, 0.13962124f);
    const float tail = e * (t * p);
    return {x < 0.0f ? tail : 1.0f - tail, e};
  }
  static DITTO_DEVICE float of(float x) { return x * normal(x).below; }
  static DITTO_DEVICE float slope(float x) {
    const Normal d = normal(x);
    return fused(x * d.e, 0.39894228f, d.below);
  }
};

// Calls of(place, numbers) for a thread's pack of n numbers; the last pack may lack some, which are taken one by one.
template <int N, class Pack, class One>
DITTO_DEVICE void each(Index n, Pack pack, One one) {
  const Index at = (static_cast<Index>(block_x()) * thread_count() + thread_at()) * N;
  if (at + N <= n) return pack(at);
  for (Index i = at; i < n; ++i) one(i);
}

template <class T, class F, int N>
DITTO_KERNEL(kFunctionThreads)
map(const void* from, void* to, Index n) {
  const T* const x = static_cast<const T*>(from);
  T* const y = static_cast<T*>(to);
  each<N>(
      n,
      [&](Index at) {
        float a[N];
        load(x + at, a);
#pragma unroll
        for (int i = 0; i < N; ++i) a[i] = F::of(a[i]);
        store(a, y + at);
      },
      [&](Index at) { put(F::of(wide(x[at])), y[at]); });
}

template <class T, class F, int N>
DITTO_KERNEL(kFunctionThreads)
map_back(const void* from, const void* of_y, void* to, Index n) {
  const T *const x = static_cast<const T*>(from), *const grad = static_cast<const T*>(of_y);
  T* const dx = static_cast<T*>(to);
  each<N>(
      n,
      [&](Index at) {
        float a[N], g[N];
        load(x + at, a);
        load(grad + at, g);
#pragma unroll
        for (int i = 0; i < N; ++i) a[i] = g[i] * F::slope(a[i]);
        store(a, dx + at);
      },
      [&](Index at) { put(wide(grad[at]) * F::slope(wide(x[at])), dx[at]); });
}

template <class T, int N>
DITTO_KERNEL(kMostThreads)
softmax_rows(const void* from, void* to, Index rows, Index width, int lanes) {
  float* const room = reinterpret_cast<float*>(shared_memory());
  const Seat seat(lanes);
  const Index row = static_cast<Index>(block_x()) * seat.rows + seat.row, column = seat.lane * N;
  const bool here = row < rows && column < width;
  float x[N], most = as_float(0xff800000u), sum[1] = {0};  // -infinity
  fill(most, x);
  if (here) load(static_cast<const T*>(from) + row * width + column, x);
#pragma unroll
  for (int i = 0; i < N; ++i) most = larger(most, x[i]);
  most = row_largest(most, seat, room);
  if (here) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      x[i] = exponential(x[i] - most);
      sum[0] = sum[0] + x[i];
    }
  }
  row_sums(sum, seat, room + kWarp);
  if (!here) return;
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = quotient(x[i], sum[0]);
  store(x, static_cast<T*>(to) + row * width + column);
}

template <class T, int N>
DITTO_KERNEL(kMostThreads)
softmax_rows_back(const void* of_x, const void* of_y, void* to, Index rows, Index width, int lanes) {
  const Seat seat(lanes);
  const Index row = static_cast<Index>(block_x()) * seat.rows + seat.row, column = seat.lane * N;
  const bool here = row < rows && column < width;
  float y[N], g[N], sum[1] = {0};
  fill(0.0f, y);
  fill(0.0f, g);
  if (here) {
    load(static_cast<const T*>(of_x) + row * width + column, y);
    load(static_cast<const T*>(of_y) + row * width + column, g);
  }
#pragma unroll
  for (int i = 0; i < N; ++i) sum[0] = fused(y[i], g[i], sum[0]);
  row_sums(sum, seat, reinterpret_cast<float*>(shared_memory()));
  if (!here) return;
#pragma unroll
  for (int i = 0; i < N; ++i) y[i] = y[i] * (g[i] - sum[0]);
  store(y, static_cast<T*>(to) + row * width + column);
}

template <class F>
Status by_function(Function f, F of) {
  switch (f) {
    case Function::silu: return of(Silu{});
    case Function::gelu_tanh: return of(GeluTanh{});
    default: return of(GeluErf{});
  }
}
Index blocks(Index n, int numbers_of_pack) { return parts(n, static_cast<Index>(kFunctionThreads) * numbers_of_pack); }

}  // namespace

Status apply(Function f, const void* x, void* y, Index n, Storage storage, Stream stream) {
  return by_storage(storage, [&](auto number) {
    return by_function(f, [&](auto function) {
      using T = decltype(number);
      using F = decltype(function);
      constexpr int N = 16 / sizeof(T);
      return in_packs<T>(N, x, y) ? launch(map<T, F, N>, {blocks(n, N)}, kFunctionThreads, 0, stream, x, y, n)
                                  : launch(map<T, F, 1>, {blocks(n, 1)}, kFunctionThreads, 0, stream, x, y, n);
    });
  });
}

Status apply_back(Function f, const void* x, const void* grad, void* dx, Index n, Storage storage, Stream stream) {
  return by_storage(storage, [&](auto number) {
    return by_function(f, [&](auto function) {
      using T = decltype(number);
      using F = decltype(function);
      constexpr int N = 16 / sizeof(T);
      const auto by = [&](auto kernel, int numbers) {
        return launch(kernel, {blocks(n, numbers)}, kFunctionThreads, 0, stream, x, grad, dx, n);
      };
      return in_packs<T>(N, x, grad, dx) ? by(map_back<T, F, N>, N) : by(map_back<T, F, 1>, 1);
    });
  });
}

Status softmax(const void* x, void* y, Index rows, Index width, Storage storage, Stream stream) {
  return by_storage(storage, [&](auto number) {
    using T = decltype(number);
    const auto by = [&](auto kernel, int numbers) {
      const Walk walk = walk_of(width, numbers);
      if (walk.threads > kMostThreads) return kInvalid;
      return launch(kernel, {parts(rows, walk.rows())}, walk.threads, sum_room(2), stream, x, y, rows, width,
                    walk.lanes);
    };
    constexpr int N = 16 / sizeof(T);
    return in_packs<T>(width, x, y) ? by(softmax_rows<T, N>, N) : by(softmax_rows<T, 1>, 1);
  });
}

Status softmax_back(const void* y, const void* grad, void* dx, Index rows, Index width, Storage storage,
                    Stream stream) {
  return by_storage(storage, [&](auto number) {
    using T = decltype(number);
    const auto by = [&](auto kernel, int numbers) {
      const Walk walk = walk_of(width, numbers);
      if (walk.threads > kMostThreads) return kInvalid;
      return launch(kernel, {parts(rows, walk.rows())}, walk.threads, sum_room(1), stream, y, grad, dx, rows, width,
                    walk.lanes);
    };
    constexpr int N = 16 / sizeof(T);
    return in_packs<T>(width, y, grad, dx) ? by(softmax_rows_back<T, N>, N) : by(softmax_rows_back<T, 1>, 1);
  });
}

}  // namespace ditto_cuda
