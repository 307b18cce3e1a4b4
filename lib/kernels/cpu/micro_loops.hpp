// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cpu/micro.hpp"

/// The loops behind Micro, over the Vec that the including file chose. Nothing here may be shared between the files
/// that include it: they are compiled for different processors, so all of it is local to each, and no header that
/// defines inline functions (the standard library's) is used.
namespace tandem::detail::cpu {
namespace {

using Index = std::int64_t;
constexpr Index key_dim = 128;

/// Runs `Block::run<rows>` over groups of at most `Most` rows: the tail by the instance for its size, so that every row
/// goes through the same operations.
template <class Block, int Most, class... Args>
void run_tail(Index rows, Args... args) {
  if constexpr (Most > 0) {
    if (rows == Most) return Block::template run<Most>(args...);
    run_tail<Block, Most - 1>(rows, args...);
  }
}

struct PanelDots {
  template <int M>
  static void run(const float* q, const float* panel, float* z, Index z_stride) {
    for (Index j = 0; j < panel_keys; j += 2 * lanes) {
      Vec acc[M][2];
      for (int m = 0; m < M; ++m) acc[m][0] = acc[m][1] = zero();
      for (Index c = 0; c < key_dim; ++c) {
        const Vec k0 = load(panel + c * panel_keys + j);
        const Vec k1 = load(panel + c * panel_keys + j + lanes);
        for (int m = 0; m < M; ++m) {
          const Vec x = broadcast(q[m * key_dim + c]);
          acc[m][0] = multiply_add(x, k0, acc[m][0]);
          acc[m][1] = multiply_add(x, k1, acc[m][1]);
        }
      }
      for (int m = 0; m < M; ++m) {
        store(z + m * z_stride + j, acc[m][0]);
        store(z + m * z_stride + j + lanes, acc[m][1]);
      }
    }
  }
};

void panel_dots(const float* q, Index q_rows, const float* panel, Index panels, float* z) {
  constexpr int most = 6;
  const Index z_stride = panels * panel_keys;
  for (Index p = 0; p < panels; ++p) {
    const float* keys = panel + p * key_dim * panel_keys;
    float* to = z + p * panel_keys;
    Index i = 0;
    for (; i + most <= q_rows; i += most) PanelDots::run<most>(q + i * key_dim, keys, to + i * z_stride, z_stride);
    run_tail<PanelDots, most - 1>(q_rows - i, q + i * key_dim, keys, to + i * z_stride, z_stride);
  }
}

void combine_heads(const float* z, Index z_stride, const float* w, Index heads, bool relu, Index keys, float* scores) {
  for (Index j = 0; j < keys; j += lanes) {
    Vec score = zero();
    for (Index h = 0; h < heads; ++h) {
      const Vec x = load(z + h * z_stride + j);
      score = multiply_add(broadcast(w[h]), relu ? relu_of(x) : x, score);
    }
    store(scores + j, score);
  }
}

template <int B>
struct Dots {
  template <int A>
  static void run(const float* const* a, const float* const* b, Index columns, float* c, Index c_stride) {
    Vec acc[A][B];
    for (int i = 0; i < A; ++i) {
      for (int j = 0; j < B; ++j) acc[i][j] = zero();
    }
    for (Index x = 0; x < columns; x += lanes) {
      Vec right[B];
      for (int j = 0; j < B; ++j) right[j] = load(b[j] + x);
      for (int i = 0; i < A; ++i) {
        const Vec left = load(a[i] + x);
        for (int j = 0; j < B; ++j) acc[i][j] = multiply_add(left, right[j], acc[i][j]);
      }
    }
    for (int i = 0; i < A; ++i) {
      for (int j = 0; j < B; ++j) c[i * c_stride + j] = sum(acc[i][j]);
    }
  }
};

template <int B>
void dots_columns(const float* const* a, Index a_rows, const float* const* b, Index columns, float* c, Index c_stride) {
  constexpr int most = 4;
  Index i = 0;
  for (; i + most <= a_rows; i += most) Dots<B>::template run<most>(a + i, b, columns, c + i * c_stride, c_stride);
  run_tail<Dots<B>, most - 1>(a_rows - i, a + i, b, columns, c + i * c_stride, c_stride);
}

void dots(const float* const* a, Index a_rows, const float* const* b, Index b_rows, Index columns, float* c,
          Index c_stride) {
  Index j = 0;
  for (; j + 3 <= b_rows; j += 3) dots_columns<3>(a, a_rows, b + j, columns, c + j, c_stride);
  if (b_rows - j == 2) dots_columns<2>(a, a_rows, b + j, columns, c + j, c_stride);
  if (b_rows - j == 1) dots_columns<1>(a, a_rows, b + j, columns, c + j, c_stride);
}

struct AddProduct {
  template <int M>
  static void run(float* const* out, const float* coef, Index coef_stride, const float* const* rows, Index inner,
                  Index columns) {
    for (Index x = 0; x < columns; x += 2 * lanes) {
      Vec acc[M][2];
      for (int m = 0; m < M; ++m) acc[m][0] = acc[m][1] = zero();
      for (Index k = 0; k < inner; ++k) {
        const Vec r0 = load(rows[k] + x);
        const Vec r1 = load(rows[k] + x + lanes);
        for (int m = 0; m < M; ++m) {
          const Vec factor = broadcast(coef[m * coef_stride + k]);
          acc[m][0] = multiply_add(factor, r0, acc[m][0]);
          acc[m][1] = multiply_add(factor, r1, acc[m][1]);
        }
      }
      for (int m = 0; m < M; ++m) {
        store(out[m] + x, add(load(out[m] + x), acc[m][0]));
        store(out[m] + x + lanes, add(load(out[m] + x + lanes), acc[m][1]));
      }
    }
  }
};

void add_product(float* const* out, Index outs, const float* coef, Index coef_stride, const float* const* rows,
                 Index inner, Index columns) {
  constexpr int most = 4;
  Index m = 0;
  for (; m + most <= outs; m += most) {
    AddProduct::run<most>(out + m, coef + m * coef_stride, coef_stride, rows, inner, columns);
  }
  run_tail<AddProduct, most - 1>(outs - m, out + m, coef + m * coef_stride, coef_stride, rows, inner, columns);
}

void widen(const std::uint16_t* from, Index count, float* to) {
  for (Index i = 0; i < count; i += lanes) store(to + i, load_bf16(from + i));
}

constexpr Micro table(const char* name, std::uint32_t id) {
  return {name, id, panel_dots, combine_heads, dots, add_product, widen};
}

}  // namespace
}  // namespace tandem::detail::cpu
