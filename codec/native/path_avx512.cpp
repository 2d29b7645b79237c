// The path for AVX-512 with bytes and words, and BMI.
#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "path.h"
#include "target.h"

SKERRY_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx2,popcnt,bmi,bmi2")
#include "words.h"

namespace skerry {
namespace {

using Wanted = __m512i;

inline Wanted want(uint8_t c) { return _mm512_set1_epi8(static_cast<char>(c)); }

inline uint64_t equal(const uint8_t *block, Wanted wanted) {
  return _mm512_cmpeq_epi8_mask(_mm512_loadu_si512(block), wanted);
}

// In whole stores: what comes next reads as much at once, which a store of half cannot answer.
template <class Word>
inline void classes_of_block(const char *words, uint32_t shift, uint32_t mask, uint8_t *classes) {
  const __m128i by = _mm_cvtsi32_si128(static_cast<int>(shift));
  if constexpr (sizeof(Word) == 1) {
    // Bits of a neighbour come in from above, where the mask has none.
    const __m512i shifted = _mm512_srl_epi16(_mm512_loadu_si512(words), by);
    _mm512_storeu_si512(classes, _mm512_and_si512(shifted, want(static_cast<uint8_t>(mask))));
  } else if constexpr (sizeof(Word) == 2) {
    __m256i half[2];
    for (int i = 0; i < 2; i++) {
      const __m512i shifted = _mm512_srl_epi16(_mm512_loadu_si512(words + 64 * i), by);
      half[i] = _mm512_cvtepi16_epi8(shifted);
    }
    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(half[0]), half[1], 1);
    _mm512_storeu_si512(classes, _mm512_and_si512(both, want(static_cast<uint8_t>(mask))));
  } else {
    narrow_block<Word>(words, shift, mask, classes);
  }
}

template <class Word>
inline uint64_t differing(const void *before, const void *after, uint64_t at) {
  const char *a = static_cast<const char *>(before) + at * sizeof(Word);
  const char *b = static_cast<const char *>(after) + at * sizeof(Word);
  uint64_t bits = 0;
  for (int i = 0; i < static_cast<int>(sizeof(Word)); i++) {
    const __m512i x = _mm512_loadu_si512(a + 64 * i), y = _mm512_loadu_si512(b + 64 * i);
    uint64_t mask;
    if constexpr (sizeof(Word) == 1) mask = _mm512_cmpneq_epu8_mask(x, y);
    if constexpr (sizeof(Word) == 2) mask = _mm512_cmpneq_epu16_mask(x, y);
    if constexpr (sizeof(Word) == 4) mask = _mm512_cmpneq_epu32_mask(x, y);
    if constexpr (sizeof(Word) == 8) mask = _mm512_cmpneq_epu64_mask(x, y);
    bits |= mask << (64 / static_cast<int>(sizeof(Word)) * i);
  }
  return bits;
}

inline uint32_t nth(uint64_t mask, uint32_t n) {
  return static_cast<uint32_t>(__builtin_ctzll(_pdep_u64(uint64_t(1) << n, mask)));
}

#include "vector_counter.inc"

#include "path.inc"

}  // namespace

const Path kAvx512 = kPath;

}  // namespace skerry
SKERRY_TARGET_END

#endif
