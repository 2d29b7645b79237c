// The path for AVX2 and BMI.
#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "path.h"
#include "target.h"

SKERRY_TARGET_BEGIN("avx2,popcnt,bmi,bmi2")
#include "words.h"

namespace skerry {
namespace {

using Wanted = __m256i;

inline Wanted want(uint8_t c) { return _mm256_set1_epi8(static_cast<char>(c)); }

inline uint64_t equal(const uint8_t *block, Wanted wanted) {
  const auto *half = reinterpret_cast<const __m256i *>(block);
  const __m256i low = _mm256_cmpeq_epi8(_mm256_loadu_si256(half), wanted);
  const __m256i high = _mm256_cmpeq_epi8(_mm256_loadu_si256(half + 1), wanted);
  return static_cast<uint32_t>(_mm256_movemask_epi8(low)) |
         uint64_t(static_cast<uint32_t>(_mm256_movemask_epi8(high))) << 32;
}

template <class Word>
inline void classes_of_block(const char *words, uint32_t shift, uint32_t mask, uint8_t *classes) {
  narrow_block<Word>(words, shift, mask, classes);
}

template <class Word>
inline __m256i equal_words(const char *before, const char *after) {
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(before));
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(after));
  if constexpr (sizeof(Word) == 1) return _mm256_cmpeq_epi8(a, b);
  if constexpr (sizeof(Word) == 2) return _mm256_cmpeq_epi16(a, b);
  if constexpr (sizeof(Word) == 4) return _mm256_cmpeq_epi32(a, b);
  return _mm256_cmpeq_epi64(a, b);
}

template <class Word>
inline uint64_t differing(const void *before, const void *after, uint64_t at) {
  const char *a = static_cast<const char *>(before) + at * sizeof(Word);
  const char *b = static_cast<const char *>(after) + at * sizeof(Word);
  uint64_t same = 0;
  if constexpr (sizeof(Word) == 1) {
    for (int i = 0; i < 2; i++) {
      const __m256i words = equal_words<Word>(a + 32 * i, b + 32 * i);
      same |= uint64_t(static_cast<uint32_t>(_mm256_movemask_epi8(words))) << (32 * i);
    }
  } else if constexpr (sizeof(Word) == 2) {
    for (int i = 0; i < 2; i++) {
      const __m256i low = equal_words<Word>(a + 64 * i, b + 64 * i);
      const __m256i high = equal_words<Word>(a + 64 * i + 32, b + 64 * i + 32);
      // Packing works within 128-bit lanes; the permutation puts the quarters back in order.
      const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8);
      same |= uint64_t(static_cast<uint32_t>(_mm256_movemask_epi8(packed))) << (32 * i);
    }
  } else if constexpr (sizeof(Word) == 4) {
    for (int i = 0; i < 8; i++) {
      const __m256 lanes = _mm256_castsi256_ps(equal_words<Word>(a + 32 * i, b + 32 * i));
      same |= uint64_t(static_cast<uint32_t>(_mm256_movemask_ps(lanes))) << (8 * i);
    }
  } else {
    for (int i = 0; i < 16; i++) {
      const __m256d lanes = _mm256_castsi256_pd(equal_words<Word>(a + 32 * i, b + 32 * i));
      same |= uint64_t(static_cast<uint32_t>(_mm256_movemask_pd(lanes))) << (4 * i);
    }
  }
  return ~same;
}

inline uint32_t nth(uint64_t mask, uint32_t n) {
  return static_cast<uint32_t>(__builtin_ctzll(_pdep_u64(uint64_t(1) << n, mask)));
}

#include "vector_counter.inc"

#include "path.inc"

}  // namespace

const Path kAvx2 = kPath;

}  // namespace skerry
SKERRY_TARGET_END

#endif
