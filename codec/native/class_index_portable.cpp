// The class index in plain C++.
#include <cstring>

#include "class_index.h"
#include "words.h"

namespace skerry {
namespace {

using Wanted = uint8_t;

inline Wanted want(uint8_t c) { return c; }

// Eight comparisons at a time: a byte of `x ^ cccccccc` is zero where the class is c.
inline uint64_t equal(const uint8_t *block, Wanted wanted) {
  constexpr uint64_t ones = 0x0101010101010101, low = 0x7f * ones;
  uint64_t mask = 0;
  for (uint64_t i = 0; i < 8; i++) {
    const uint64_t x = load<uint64_t>(block, i) ^ wanted * ones;
    const uint64_t zero = ~(((x & low) + low) | x | low);  // the top bit of each zero byte
    mask |= (zero >> 7) * 0x0102040810204080 >> 56 << (8 * i);
  }
  return mask;
}

inline uint32_t nth(uint64_t mask, uint32_t n) {
  for (; n; n--) mask &= mask - 1;
  return static_cast<uint32_t>(__builtin_ctzll(mask));
}

// A look-up a word; four tables take turns, since words next to each other often share a class, and
// one table would wait for its own last store.
uint64_t walk(ClassIndex &index, uint64_t n) {
  uint32_t seen[4][SKERRY_CLASSES] = {};
  uint8_t is_rare[SKERRY_CLASSES];
  for (uint32_t c = 0; c < SKERRY_CLASSES; c++) is_rare[c] = index.slot[c] == kRare;
  const uint8_t *classes = index.classes;
  uint64_t rare = 0;
  for (uint64_t span = 0; span < index.spans; span++) {
    for (uint32_t k = 0; k < index.commons; k++) {
      const uint32_t c = index.common[k];
      index.counts[k * index.row + span] = seen[0][c] + seen[1][c] + seen[2][c] + seen[3][c];
    }
    const uint64_t end = (span + 1) * kSpan < n ? (span + 1) * kSpan : n;
    for (uint64_t at = span * kSpan; at < end; at++) {
      const uint8_t c = classes[at];
      seen[at & 3][c]++;
      // Without a branch: what is not rare is written over.
      index.found[rare] = static_cast<uint32_t>(at);
      rare += is_rare[c];
    }
  }
  for (uint32_t c = 0; c < SKERRY_CLASSES; c++) {
    index.population[c] = seen[0][c] + seen[1][c] + seen[2][c] + seen[3][c];
  }
  return rare;
}

#define SKERRY_OWN_WALK
#include "class_index.inc"

}  // namespace

const ClassQueries kPortableQueries = kQueries;

}  // namespace skerry
