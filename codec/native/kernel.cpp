// The interface's plain functions: what the library is, comparing, describing changes, writing them.
#include "kernel.h"

#include <algorithm>

#include "path.h"
#include "words.h"

namespace skerry {
namespace {

template <class Word>
int64_t describe(const Chunk &chunk, const void *after, const uint32_t *positions,
                 const uint32_t *ranks, uint64_t count, const int64_t *changed,
                 const skerry_changes &out) {
  // A counting sort: by class, and within one as they come.
  uint64_t place[SKERRY_CLASSES], end[SKERRY_CLASSES], sum = 0;
  for (uint32_t c = 0; c < SKERRY_CLASSES; c++) {
    place[c] = sum;
    end[c] = sum += static_cast<uint64_t>(changed[c]);
  }
  if (sum != count) return SKERRY_ARGUMENT;
  const skerry_dtype dtype = chunk.dtype;
  for (uint64_t i = 0; i < count; i++) {
    const uint64_t next = positions[std::min(i + kAhead, count - 1)];
    prefetch(chunk.words, next * sizeof(Word));
    prefetch(after, next * sizeof(Word));
    const uint64_t at = positions[i];
    if (at >= chunk.n) return SKERRY_ARGUMENT;
    const Word old = load<Word>(chunk.words, at);
    const Word up =
        Word(ordinal(load<Word>(after, at), dtype.is_float) - ordinal(old, dtype.is_float));
    const bool down = up >> (8 * sizeof(Word) - 1);
    const auto c = static_cast<uint8_t>(old >> dtype.shift & dtype.mask);
    // Words that change under our hands have other classes than were counted.
    if (place[c] == end[c]) return SKERRY_ARGUMENT;
    const uint64_t to = place[c]++;
    out.classes[to] = c;
    out.ranks[to] = ranks[i];
    out.magnitudes[to] = down ? Word(0 - up) : up;
    out.downs[to] = down;
  }
  return static_cast<int64_t>(count);
}

// The positions ascend over far more memory than caches hold: where they lead is asked for early.
template <class Word>
int64_t apply(const skerry_write &write) {
  for (uint64_t i = 0; i < write.count; i++) {
    const auto next = static_cast<uint64_t>(write.positions[std::min(i + kAhead, write.count - 1)]);
    if (next < write.n) prefetch(write.words, next * sizeof(Word));
    const auto at = static_cast<uint64_t>(write.positions[i]);
    if (at >= write.n) return SKERRY_ARGUMENT;
    store(write.words, at, load<Word>(write.after, i));
  }
  return static_cast<int64_t>(write.count);
}

int64_t apply(const skerry_write &write) {
  int64_t written = SKERRY_ARGUMENT;
  with_word(write.word, [&](auto w) { written = apply<decltype(w)>(write); });
  return written;
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
  return skerry::path_of(path).diff(word, before, after, n, bitmap);
}

int64_t skerry_positions(const uint64_t *bitmap, uint64_t n, int64_t *positions) {
  int64_t *next = positions;
  skerry::each_set(bitmap, n, [&](uint64_t at) { *next++ = static_cast<int64_t>(at); });
  return next - positions;
}

int64_t skerry_scan(skerry_path path, const skerry_dtype *dtype, const void *before, const void *after,
                    uint64_t n, uint32_t *positions, uint32_t *ranks, int64_t *population,
                    int64_t *changed) {
  if (!skerry::is_sound(*dtype) || n > SKERRY_MAX_WORDS) return SKERRY_ARGUMENT;
  return skerry::path_of(path).scan({*dtype, before, n}, after, {positions, ranks}, population, changed);
}

int64_t skerry_describe(const skerry_dtype *dtype, const void *before, const void *after, uint64_t n,
                        const uint32_t *positions, const uint32_t *ranks, uint64_t count,
                        const int64_t *changed, const skerry_changes *changes) {
  if (!skerry::is_sound(*dtype)) return SKERRY_ARGUMENT;
  int64_t described = SKERRY_ARGUMENT;
  skerry::with_word(dtype->word, [&](auto w) {
    described = skerry::describe<decltype(w)>({*dtype, before, n}, after, positions, ranks, count,
                                              changed, *changes);
  });
  return described;
}

int64_t skerry_apply(const skerry_write *writes, uint64_t count) {
  int64_t sum = 0;
  for (uint64_t i = 0; i < count; i++) {
    const int64_t written = skerry::apply(writes[i]);
    if (written < 0) return written;
    sum += written;
  }
  return sum;
}

}  // extern "C"
