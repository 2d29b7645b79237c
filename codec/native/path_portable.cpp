// The path in plain C++.
#include <algorithm>
#include <cstring>

#include "path.h"
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

template <class Word>
inline void classes_of_block(const char *words, uint32_t shift, uint32_t mask, uint8_t *classes) {
  narrow_block<Word>(words, shift, mask, classes);
}

template <class Word>
inline uint64_t differing(const void *before, const void *after, uint64_t at) {
  const char *a = static_cast<const char *>(before) + at * sizeof(Word);
  const char *b = static_cast<const char *>(after) + at * sizeof(Word);
  // Most of what is compared is equal, so whole blocks are.
  if (!std::memcmp(a, b, 64 * sizeof(Word))) return 0;
  alignas(8) uint8_t differ[64];
  for (uint64_t i = 0; i < 64; i++) differ[i] = load<Word>(a, i) != load<Word>(b, i);
  return equal(differ, want(1));
}

inline uint32_t nth(uint64_t mask, uint32_t n) {
  for (; n; n--) mask &= mask - 1;
  return static_cast<uint32_t>(__builtin_ctzll(mask));
}

// A look-up a word; four tables take turns, since words next to each other often share a class, and
// one table would wait for its own last store.
class Counter {
 public:
  explicit Counter(const Commons &commons) {
    std::fill(is_rare_, is_rare_ + SKERRY_CLASSES, true);
    for (uint32_t k = 0; k < commons.count; k++) is_rare_[commons.classes[k]] = false;
  }

  uint32_t operator[](uint32_t c) const {
    return counted_[0][c] + counted_[1][c] + counted_[2][c] + counted_[3][c];
  }

  template <class OnRare>
  inline void add(const uint8_t *classes, OnRare on_rare) {
    for (uint64_t from = 0; from < kSpan; from += 4) {
      for (uint64_t table = 0; table < 4; table++) {
        const uint8_t c = classes[from + table];
        counted_[table][c]++;
        if (is_rare_[c]) on_rare(from + table);
      }
    }
  }

  void end(uint64_t n) { counted_[0][0] -= static_cast<uint32_t>((kSpan - n % kSpan) % kSpan); }

 private:
  bool is_rare_[SKERRY_CLASSES];
  uint32_t counted_[4][SKERRY_CLASSES] = {};
};

// At most 255, so that compilers add bytes.
inline uint32_t before_in_span(const uint8_t *classes, uint32_t place) {
  const uint8_t c = classes[place];
  uint8_t before = 0;
  for (uint32_t i = 0; i < place; i++) before = static_cast<uint8_t>(before + (classes[i] == c));
  return before;
}

#include "path.inc"

}  // namespace

const Path kPortable = kPath;

}  // namespace skerry
