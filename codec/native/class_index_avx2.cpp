// The class index for AVX2 and BMI.
#if defined(__x86_64__)

#include <immintrin.h>

#include <cstring>

#include "class_index.h"
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

inline uint32_t nth(uint64_t mask, uint32_t n) {
  return static_cast<uint32_t>(__builtin_ctzll(_pdep_u64(uint64_t(1) << n, mask)));
}

#include "class_index.inc"

}  // namespace

const ClassQueries kAvx2Queries = kQueries;

}  // namespace skerry
SKERRY_TARGET_END

#endif
