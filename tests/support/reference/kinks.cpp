// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "support/reference/detail.hpp"

namespace tandem::reference {

using namespace detail;

namespace {

/// By how much |got - want|^2 shrinks on the other side of a kink.
double gain(const Kink& kink, const float* key, double scale, const double* got, const double* want) {
  double along = 0;
  double size = 0;
  for (std::int64_t c = 0; c < index_dim; ++c) {
    const double k = scale * static_cast<double>(key[c]);
    along += (got[c] - want[c]) * k;
    size += k * k;
  }
  return kink.jump * (2 * along - kink.jump * size);
}

/// Settles the kinks of one vector of d_index_q.
std::int64_t settle_vector(const Problem& p, Portion portion, IndexerLoss& loss, std::span<Kink> kinks,
                           const double* got) {
  const std::int64_t vector = kinks[0].row * p.index_heads + kinks[0].head;
  const float* q = &p.index_q[at((portion.begin * p.index_heads + vector) * index_dim)];
  double* want = &loss.d_index_q[at(vector * index_dim)];
  std::vector<char> turned(kinks.size());
  // Every turn brings `want` nearer, so this ends anyway; rounding must not make it go round.
  for (std::size_t turns = 0; turns < 2 * kinks.size(); ++turns) {
    std::size_t best = 0;
    double most = 0;
    for (std::size_t i = 0; i < kinks.size(); ++i) {
      const std::int64_t key = kinks[i].key;
      const double g =
          gain(kinks[i], &p.index_k[at(key * index_dim)], key_scale(p, key), got + vector * index_dim, want);
      if (g > most) {
        most = g;
        best = i;
      }
    }
    if (most <= 0) break;
    Kink& kink = kinks[best];
    add_scaled(want, kink.jump * key_scale(p, kink.key), &p.index_k[at(kink.key * index_dim)], index_dim);
    add_scaled(&loss.d_index_k[at(kink.key * index_dim)], kink.jump, q, index_dim);
    kink.jump = -kink.jump;
    turned[best] ^= 1;
  }
  return std::count(turned.begin(), turned.end(), 1);
}

}  // namespace

std::int64_t settle_kinks(const Problem& p, Portion portion, IndexerLoss& loss, std::span<const double> got) {
  std::int64_t turned = 0;
  for (auto first = loss.kinks.begin(); first != loss.kinks.end();) {
    const auto last = std::find_if(first, loss.kinks.end(),
                                   [&](const Kink& k) { return k.row != first->row || k.head != first->head; });
    turned += settle_vector(p, portion, loss, {first, last}, got.data());
    first = last;
  }
  return turned;
}

}  // namespace tandem::reference
