// Where two arrays of words differ, as a bitmap.
#include "kernel.h"
#include "words.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace skerry {
namespace {

template <class Word>
uint64_t differences(const void *before, const void *after, uint64_t at, uint64_t count) {
  uint64_t bits = 0;
  for (uint64_t i = 0; i < count; i++) {
    bits |= uint64_t(load<Word>(before, at + i) != load<Word>(after, at + i)) << i;
  }
  return bits;
}

// The bits of the 64 words from `at` on, which all exist.
template <class Word>
uint64_t portable_block(const void *before, const void *after, uint64_t at) {
  // Most of what is compared is equal, so whole blocks are.
  if (!std::memcmp(static_cast<const char *>(before) + at * sizeof(Word),
                   static_cast<const char *>(after) + at * sizeof(Word), 64 * sizeof(Word))) {
    return 0;
  }
  return differences<Word>(before, after, at, 64);
}

template <class Word, class Block>
int64_t fill(Block block, const void *before, const void *after, uint64_t n, uint64_t *bitmap) {
  int64_t count = 0;
  for (uint64_t at = 0; at < n; at += 64) {
    uint64_t bits = n - at < 64 ? differences<Word>(before, after, at, n - at)
                                : block(before, after, at);
    bitmap[at / 64] = bits;
    count += __builtin_popcountll(bits);
  }
  return count;
}

#if defined(__x86_64__)

#define SKERRY_TARGET_AVX2 __attribute__((target("avx2,popcnt,bmi")))
#define SKERRY_TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,popcnt,bmi")))

template <class Word>
SKERRY_TARGET_AVX2 inline __m256i equal256(const char *before, const char *after) {
  __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(before));
  __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(after));
  if constexpr (sizeof(Word) == 1) return _mm256_cmpeq_epi8(a, b);
  if constexpr (sizeof(Word) == 2) return _mm256_cmpeq_epi16(a, b);
  if constexpr (sizeof(Word) == 4) return _mm256_cmpeq_epi32(a, b);
  return _mm256_cmpeq_epi64(a, b);
}

template <class Word>
SKERRY_TARGET_AVX2 int64_t fill_avx2(const void *before, const void *after, uint64_t n,
                                     uint64_t *bitmap) {
  int64_t count = 0;
  uint64_t at = 0;
  for (; at + 64 <= n; at += 64) {
    const char *a = static_cast<const char *>(before) + at * sizeof(Word);
    const char *b = static_cast<const char *>(after) + at * sizeof(Word);
    uint64_t equal = 0;
    if constexpr (sizeof(Word) == 1) {
      for (int i = 0; i < 2; i++) {
        auto mask = static_cast<uint32_t>(_mm256_movemask_epi8(equal256<Word>(a + 32 * i, b + 32 * i)));
        equal |= uint64_t(mask) << (32 * i);
      }
    } else if constexpr (sizeof(Word) == 2) {
      for (int i = 0; i < 2; i++) {
        __m256i low = equal256<Word>(a + 64 * i, b + 64 * i);
        __m256i high = equal256<Word>(a + 64 * i + 32, b + 64 * i + 32);
        // Packing works within 128-bit lanes; the permutation puts the quarters back in order.
        __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8);
        equal |= uint64_t(static_cast<uint32_t>(_mm256_movemask_epi8(packed))) << (32 * i);
      }
    } else if constexpr (sizeof(Word) == 4) {
      for (int i = 0; i < 8; i++) {
        auto lanes = _mm256_castsi256_ps(equal256<Word>(a + 32 * i, b + 32 * i));
        equal |= uint64_t(static_cast<uint32_t>(_mm256_movemask_ps(lanes))) << (8 * i);
      }
    } else {
      for (int i = 0; i < 16; i++) {
        auto lanes = _mm256_castsi256_pd(equal256<Word>(a + 32 * i, b + 32 * i));
        equal |= uint64_t(static_cast<uint32_t>(_mm256_movemask_pd(lanes))) << (4 * i);
      }
    }
    bitmap[at / 64] = ~equal;
    count += __builtin_popcountll(~equal);
  }
  if (at < n) {
    bitmap[at / 64] = differences<Word>(before, after, at, n - at);
    count += __builtin_popcountll(bitmap[at / 64]);
  }
  return count;
}

template <class Word>
SKERRY_TARGET_AVX512 int64_t fill_avx512(const void *before, const void *after, uint64_t n,
                                         uint64_t *bitmap) {
  int64_t count = 0;
  uint64_t at = 0;
  for (; at + 64 <= n; at += 64) {
    const char *a = static_cast<const char *>(before) + at * sizeof(Word);
    const char *b = static_cast<const char *>(after) + at * sizeof(Word);
    uint64_t bits = 0;
    for (int i = 0; i < static_cast<int>(sizeof(Word)); i++) {
      __m512i x = _mm512_loadu_si512(a + 64 * i), y = _mm512_loadu_si512(b + 64 * i);
      uint64_t mask;
      if constexpr (sizeof(Word) == 1) mask = _mm512_cmpneq_epu8_mask(x, y);
      if constexpr (sizeof(Word) == 2) mask = _mm512_cmpneq_epu16_mask(x, y);
      if constexpr (sizeof(Word) == 4) mask = _mm512_cmpneq_epu32_mask(x, y);
      if constexpr (sizeof(Word) == 8) mask = _mm512_cmpneq_epu64_mask(x, y);
      bits |= mask << (64 / static_cast<int>(sizeof(Word)) * i);
    }
    bitmap[at / 64] = bits;
    count += __builtin_popcountll(bits);
  }
  if (at < n) {
    bitmap[at / 64] = differences<Word>(before, after, at, n - at);
    count += __builtin_popcountll(bitmap[at / 64]);
  }
  return count;
}

#endif

template <class Word>
int64_t diff(skerry_path path, const void *before, const void *after, uint64_t n, uint64_t *bitmap) {
#if defined(__x86_64__)
  if (path == SKERRY_AVX512) return fill_avx512<Word>(before, after, n, bitmap);
  if (path == SKERRY_AVX2) return fill_avx2<Word>(before, after, n, bitmap);
#endif
  (void)path;
  return fill<Word>(portable_block<Word>, before, after, n, bitmap);
}

}  // namespace
}  // namespace skerry

extern "C" {

#ifndef SKERRY_SOURCES
#define SKERRY_SOURCES ""
#endif
const char *skerry_sources(void) { return SKERRY_SOURCES; }

uint32_t skerry_paths(void) {
  uint32_t paths = SKERRY_PORTABLE;
#if defined(__x86_64__)
  // All that a path's files are compiled for: a hypervisor may hide any of it.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt") &&
      __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2")) {
    paths |= SKERRY_AVX2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      paths |= SKERRY_AVX512;
    }
  }
#endif
  return paths;
}

int64_t skerry_diff(skerry_path path, uint32_t word, const void *before, const void *after, uint64_t n,
                    uint64_t *bitmap) {
  int64_t count = SKERRY_ARGUMENT;
  skerry::with_word(word, [&](auto w) {
    count = skerry::diff<decltype(w)>(path, before, after, n, bitmap);
  });
  return count;
}

int64_t skerry_positions(const uint64_t *bitmap, uint64_t n, int64_t *positions) {
  int64_t *next = positions;
  skerry::each_set(bitmap, n, [&](uint64_t at) { *next++ = static_cast<int64_t>(at); });
  return next - positions;
}

}  // extern "C"
