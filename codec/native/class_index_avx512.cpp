// The class index for AVX-512 with bytes and words, and BMI.
#if defined(__x86_64__)

#include <immintrin.h>

#include <cstring>

#include "class_index.h"
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

inline uint32_t nth(uint64_t mask, uint32_t n) {
  return static_cast<uint32_t>(__builtin_ctzll(_pdep_u64(uint64_t(1) << n, mask)));
}

#include "class_index.inc"

}  // namespace

const ClassQueries kAvx512Queries = kQueries;

}  // namespace skerry
SKERRY_TARGET_END

#endif
